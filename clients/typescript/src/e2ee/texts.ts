/** Many entries, kept as JSON texts: each is parsed when it is asked for. */

/** Entries by name. */
export type Entries<T> = Readonly<Record<string, T>> | Texts<T>;

/** A hundred thousand entries are small so, and are at hand at once. */
export class Texts<T> {
  constructor(private readonly texts = new Map<string, string>()) {}

  /** These entries; those that are texts already are shared, not copied. */
  static of<T>(entries: Entries<T>): Texts<T> {
    if (entries instanceof Texts) return entries;
    const all = Object.entries(entries).map(([name, entry]) => [name, JSON.stringify(entry)] as const);
    return new Texts<T>(new Map(all));
  }

  get size(): number {
    return this.texts.size;
  }

  names(): IterableIterator<string> {
    return this.texts.keys();
  }

  entries(): IterableIterator<[name: string, text: string]> {
    return this.texts.entries();
  }

  get(name: string): T | undefined {
    const text = this.texts.get(name);
    return text === undefined ? undefined : (JSON.parse(text) as T);
  }

  /** Takes the place of an earlier entry of this name. */
  put(name: string, entry: T): void {
    this.texts.set(name, JSON.stringify(entry));
  }
}
