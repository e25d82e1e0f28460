/** The primitives by the scheme's names: WebCrypto, and Node's own library for short texts. */
import { type Bytes, EMPTY, type NativeKey, concat, fromHex, hex } from "./bytes.js";
import { DecryptError } from "./errors.js";
import { Recent, native, nativeKey } from "./native.js";

const subtle = crypto.subtle;

/** RFC 8410's prefixes of a PKCS#8 private key of 32 bytes. */
const PKCS8_X25519 = fromHex("302e020100300506032b656e04220420");
const PKCS8_ED25519 = fromHex("302e020100300506032b657004220420");
/** And of an Ed25519 public key of 32 bytes, as SPKI. */
const SPKI_ED25519 = fromHex("302a300506032b6570032100");

/** Longer texts go to WebCrypto's threads, so that they hold nobody up. */
const MAX_INLINE_BYTES = 64 * 1024;

export async function sha256(...parts: readonly Uint8Array[]): Promise<Bytes> {
  const text = concat(...parts);
  if (native && text.length <= MAX_INLINE_BYTES) {
    return new Uint8Array(native.createHash("sha256").update(text).digest());
  }
  return new Uint8Array(await subtle.digest("SHA-256", text));
}

export async function sha512(...parts: readonly Uint8Array[]): Promise<Bytes> {
  return new Uint8Array(await subtle.digest("SHA-512", concat(...parts)));
}

/** A secret as a key that scripts cannot read back. */
export function hkdfKey(secret: Uint8Array): Promise<NativeKey> {
  return subtle.importKey("raw", secret as Bytes, "HKDF", false, ["deriveBits"]);
}

export async function hkdf(
  key: NativeKey | Uint8Array,
  salt: Uint8Array,
  info: Uint8Array,
  length: number,
): Promise<Bytes> {
  if (native) {
    const secret = key instanceof Uint8Array ? key : nativeKey(native, key);
    return new Uint8Array(native.hkdfSync("sha256", secret, salt, info, length));
  }
  const secret = key instanceof Uint8Array ? await hkdfKey(key) : key;
  const parameters = { name: "HKDF", hash: "SHA-256", salt: salt as Bytes, info: info as Bytes };
  return new Uint8Array(await subtle.deriveBits(parameters, secret, length * 8));
}

const TAG_BYTES = 16;

export async function gcmSeal(
  key: Uint8Array,
  nonce: Uint8Array,
  plaintext: Uint8Array,
  aad: Uint8Array = EMPTY,
): Promise<Bytes> {
  if (native && plaintext.length <= MAX_INLINE_BYTES) {
    const cipher = native.createCipheriv("aes-256-gcm", key, nonce).setAAD(aad);
    return concat(cipher.update(plaintext), cipher.final(), cipher.getAuthTag());
  }
  const imported = await subtle.importKey("raw", key as Bytes, "AES-GCM", false, ["encrypt"]);
  const parameters = { name: "AES-GCM", iv: nonce as Bytes, additionalData: aad as Bytes };
  return new Uint8Array(await subtle.encrypt(parameters, imported, plaintext as Bytes));
}

/** Throws `bad_ciphertext`. */
export async function gcmOpen(
  key: Uint8Array,
  nonce: Uint8Array,
  ciphertext: Uint8Array,
  aad: Uint8Array = EMPTY,
): Promise<Bytes> {
  if (ciphertext.length < TAG_BYTES) throw new DecryptError("bad_ciphertext");
  if (native && ciphertext.length <= MAX_INLINE_BYTES)
    return openInline(native, key, nonce, ciphertext, aad);
  const imported = await subtle.importKey("raw", key as Bytes, "AES-GCM", false, ["decrypt"]);
  const parameters = { name: "AES-GCM", iv: nonce as Bytes, additionalData: aad as Bytes };
  try {
    return new Uint8Array(await subtle.decrypt(parameters, imported, ciphertext as Bytes));
  } catch {
    throw new DecryptError("bad_ciphertext");
  }
}

function openInline(
  library: NonNullable<typeof native>,
  key: Uint8Array,
  nonce: Uint8Array,
  ciphertext: Uint8Array,
  aad: Uint8Array,
): Bytes {
  const end = ciphertext.length - TAG_BYTES;
  const options = { authTagLength: TAG_BYTES };
  const decipher = library.createDecipheriv("aes-256-gcm", key, nonce, options).setAAD(aad);
  decipher.setAuthTag(ciphertext.subarray(end));
  try {
    const opened = decipher.update(ciphertext.subarray(0, end));
    // It checks the tag, and adds nothing.
    decipher.final();
    return new Uint8Array(opened);
  } catch {
    throw new DecryptError("bad_ciphertext");
  }
}

export function importX25519(privateKey: Uint8Array, extractable = false): Promise<NativeKey> {
  const pkcs8 = concat(PKCS8_X25519, privateKey);
  return subtle.importKey("pkcs8", pkcs8, "X25519", extractable, ["deriveBits"]);
}

export function importX25519Public(publicKey: Uint8Array): Promise<NativeKey> {
  return subtle.importKey("raw", publicKey as Bytes, "X25519", true, []);
}

export function importEd25519(seed: Uint8Array, extractable = false): Promise<NativeKey> {
  return subtle.importKey("pkcs8", concat(PKCS8_ED25519, seed), "Ed25519", extractable, ["sign"]);
}

/** The public half: WebCrypto derives it only by way of an extractable key. */
export async function publicHalf(kind: "X25519" | "Ed25519", secret: Uint8Array): Promise<Bytes> {
  const key = await (kind === "X25519" ? importX25519(secret, true) : importEd25519(secret, true));
  const jwk = await subtle.exportKey("jwk", key);
  const binary = atob(jwk.x!.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

export async function sign(key: NativeKey, text: Uint8Array): Promise<Bytes> {
  if (native) return new Uint8Array(native.sign(null, text, nativeKey(native, key)));
  return new Uint8Array(await subtle.sign("Ed25519", key, text as Bytes));
}

/** The seven encodings of points of small order, sign bit cleared. */
const SMALL_ORDER = new Set([
  "0000000000000000000000000000000000000000000000000000000000000000",
  "0100000000000000000000000000000000000000000000000000000000000000",
  "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
  "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]);

export function isSmallOrder(point: Uint8Array): boolean {
  const cleared = point.slice(0, 32);
  cleared[31]! &= 0x7f;
  return SMALL_ORDER.has(hex(cleared));
}

/** Checks signatures under a public key. Most messages come from few keys. */
type Checker = (signature: Uint8Array, text: Uint8Array) => boolean | Promise<boolean>;

const MAX_CHECKERS = 1_000;
const checkers = new Recent<Checker>(MAX_CHECKERS);

async function makeChecker(publicKey: Uint8Array): Promise<Checker> {
  if (native) {
    const library = native;
    const spki = Buffer.from(concat(SPKI_ED25519, publicKey));
    const key = library.createPublicKey({ key: spki, format: "der", type: "spki" });
    return (signature, text) => library.verify(null, text, key, signature);
  }
  const key = await subtle.importKey("raw", publicKey as Bytes, "Ed25519", true, ["verify"]);
  return (signature, text) => subtle.verify("Ed25519", key, signature as Bytes, text as Bytes);
}

/** Keys and points of small order are refused first: some libraries accept any text under them. */
export async function verify(
  publicKey: Uint8Array,
  signature: Uint8Array,
  text: Uint8Array,
): Promise<boolean> {
  if (publicKey.length !== 32 || signature.length !== 64 || isSmallOrder(signature)) return false;
  const name = hex(publicKey);
  try {
    let checker = checkers.get(name);
    if (!checker) {
      if (isSmallOrder(publicKey)) return false;
      checkers.set(name, (checker = await makeChecker(publicKey)));
    }
    return await checker(signature, text);
  } catch {
    return false;
  }
}
