//! The encryption of a push for its device: RFC 8291 with `aes128gcm` of RFC 8188, in one record.

use aws_lc_rs::{
    aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
};

/// Bytes of a point on P-256, uncompressed.
pub const POINT_BYTES: usize = 65;
/// Bytes of the secret that a device gives.
pub const AUTH_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
/// The size of a record. A push is shorter, so it is a single record.
const RECORD_BYTES: u32 = 4096;
/// Bytes that every content is padded to, so that its length says nothing.
const PADDED_BYTES: usize = 512;
/// Ends the content of the last record, before the padding.
const LAST_RECORD: u8 = 2;

/// A number of bytes to derive.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const N: usize>(from: &Prk, info: &[&[u8]]) -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    from.expand(info, Bytes(N))?.fill(&mut bytes)?;
    Ok(bytes)
}

/// Whether these bytes are a point on P-256.
pub fn is_point(bytes: &[u8; POINT_BYTES]) -> bool {
    let peer = UnparsedPublicKey::new(&ECDH_P256, bytes);
    PrivateKey::generate(&ECDH_P256)
        .and_then(|own| agree(&own, peer, Unspecified, |_| Ok(())))
        .is_ok()
}

/// Encrypts `content` for the device with this public key and secret.
pub fn encrypt(
    device_key: &[u8; POINT_BYTES],
    auth: &[u8; AUTH_BYTES],
    salt: [u8; SALT_BYTES],
    content: &[u8],
) -> Result<Vec<u8>, Unspecified> {
    let mut padded = [content, &[LAST_RECORD]].concat();
    padded.resize(padded.len().max(PADDED_BYTES), 0);
    let own = PrivateKey::generate(&ECDH_P256)?;
    seal(device_key, auth, salt, &own, padded)
}

/// Seals the content of the only record, with its padding, from a key of this push alone.
fn seal(
    device_key: &[u8; POINT_BYTES],
    auth: &[u8; AUTH_BYTES],
    salt: [u8; SALT_BYTES],
    own: &PrivateKey,
    mut text: Vec<u8>,
) -> Result<Vec<u8>, Unspecified> {
    let own_key = own.compute_public_key()?;
    let own_key = own_key.as_ref();
    let peer = UnparsedPublicKey::new(&ECDH_P256, device_key);
    let shared: [u8; 32] = agree(own, peer, Unspecified, |secret| {
        let extracted = Salt::new(HKDF_SHA256, auth).extract(secret);
        derive(&extracted, &[b"WebPush: info\0", device_key, own_key])
    })?;
    let extracted = Salt::new(HKDF_SHA256, &salt).extract(&shared);
    let key: [u8; 16] = derive(&extracted, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce: [u8; NONCE_LEN] = derive(&extracted, &[b"Content-Encoding: nonce\0"])?;
    let nonce = Nonce::assume_unique_for_key(nonce);
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?).seal_in_place_append_tag(
        nonce,
        Aad::empty(),
        &mut text,
    )?;
    let key_bytes = u8::try_from(own_key.len()).map_err(|_| Unspecified)?;
    Ok([
        &salt[..],
        &RECORD_BYTES.to_be_bytes(),
        &[key_bytes],
        own_key,
        &text,
    ]
    .concat())
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};

    use super::*;

    fn bytes<const N: usize>(text: &str) -> [u8; N] {
        let bytes = BASE64.decode(text).expect("base64url");
        bytes.try_into().expect("the length")
    }

    /// RFC 8291, Appendix A.
    #[test]
    fn the_vector_of_the_rfc() {
        let device_key = bytes(
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        );
        let auth = bytes("BTBZMqHH6r4Tts7J_aSIgg");
        let own: [u8; 32] = bytes("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let own = PrivateKey::from_private_key(&ECDH_P256, &own).expect("a key");
        let text = b"When I grow up, I want to be a watermelon\x02".to_vec();
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw");
        let sealed = seal(&device_key, &auth, salt, &own, text).expect("sealed");
        assert_eq!(
            BASE64.encode(sealed),
            "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
        );
    }

    #[test]
    fn all_pushes_are_of_one_length_and_no_two_are_alike() {
        let device = PrivateKey::generate(&ECDH_P256).expect("a key");
        let device = device.compute_public_key().expect("a point");
        let device: [u8; POINT_BYTES] = device.as_ref().try_into().expect("65 bytes");
        let push =
            |content: &[u8]| encrypt(&device, &[1; 16], [2; 16], content).expect("encrypted");
        let (short, long) = (push(b"a"), push(&[b'a'; 300]));
        assert_eq!(short.len(), long.len());
        assert_ne!(short, push(b"a"));
        assert!(is_point(&device));
        assert!(!is_point(&[4; POINT_BYTES]));
    }
}
