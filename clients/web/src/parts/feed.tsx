/**
 * A long list of articles, of which the page has only those in view and some around them. Spacers stand for the
 * others. Rows have any height: it is measured when a row is drawn, and estimated before.
 */
import { type Signal, useSignal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

const ESTIMATED_ROW_PX = 110;
/** Rows so far beyond the edges are drawn, so that a scroll meets no gap. */
const DRAWN_BEYOND_PX = 900;
/** A view so near to the edge of what is drawn draws more. */
const LEFT_BEYOND_PX = 400;
/** A reader within so many pixels of the end follows it. */
const FOLLOW_DISTANCE_PX = 120;
/** A reader within so many pixels of the beginning is about to need what is before it. */
const EARLIER_DISTANCE_PX = 600;
const DEFAULT_VIEW_PX = 900;

/** Where a row stands in the whole list, for a screen reader. `size` is -1 while nobody knows it. */
export interface Place {
  readonly position: number;
  readonly size: number;
}

export interface FeedProps<Item> {
  readonly items: readonly Item[];
  readonly keyOf: (item: Item) => string;
  /** An article. It is drawn again when its item or its place changes. */
  readonly row: (item: Item, place: Place) => JSX.Element;
  readonly scroller: RefObject<HTMLDivElement | null>;
  readonly label: string;
  readonly isWhole: boolean;
  readonly onNearBeginning: () => void;
}

/** The row at the upper edge of the view, which stays where it is when others come or change. */
interface Anchor {
  readonly key: string;
  /** From the upper edge of the view to the row's. */
  readonly fromTop: number;
}

interface Drawn<Item> {
  readonly item: Item;
  readonly place: Place;
  readonly row: JSX.Element;
}

export function Feed<Item>(props: FeedProps<Item>): JSX.Element {
  const { items, keyOf, scroller, isWhole } = props;
  const list = useRef<HTMLDivElement>(null);
  const turn = useSignal(0);
  const state = useRef<State<Item> | null>(null);
  const now = (state.current ??= new State<Item>(turn));
  void turn.value;
  now.lay(items, keyOf);
  const drawn = now.toDraw(scroller.current);

  useLayoutEffect(() => now.settle(list.current!, scroller.current!));
  useEffect(() => {
    const view = scroller.current!;
    const rows = list.current!;
    const onScroll = (): void => {
      now.look(rows, view);
      if (!now.isAtEnd && view.scrollTop < EARLIER_DISTANCE_PX) props.onNearBeginning();
    };
    const resizes = new ResizeObserver(() => now.settle(rows, view));
    resizes.observe(view);
    // Neighbours of the list in the view grow as well.
    resizes.observe(rows.parentElement!);
    view.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      view.removeEventListener("scroll", onScroll);
      resizes.disconnect();
    };
  }, []);

  /** As in the pattern of a feed: Page Down and Page Up go from article to article. */
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = { PageDown: 1, PageUp: -1 }[event.key];
    const slot = (event.target as Element).closest<HTMLElement>("[data-key]");
    if (!step || !slot) return;
    // A second press may come before the focus has followed the first.
    const next = now.keyAt(now.indexOf(now.held ?? slot.dataset["key"]!) + step);
    if (next === undefined) return;
    event.preventDefault();
    now.held = next;
    turn.value++;
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>(`[data-key="${next}"] > *`)?.focus());
  };

  const parts: JSX.Element[] = [];
  let after = 0;
  for (const index of drawn) {
    if (index > after) parts.push(<Gap key={`gap-${after}`} px={now.between(after, index)} />);
    const item = items[index]!;
    const place = { position: index + 1, size: isWhole ? items.length : -1 };
    parts.push(
      <div class="slot" key={keyOf(item)} data-key={keyOf(item)}>
        {now.row(item, keyOf(item), place, props.row)}
      </div>,
    );
    after = index + 1;
  }
  if (after < items.length) parts.push(<Gap key="gap-end" px={now.between(after, items.length)} />);
  return (
    <div
      class="feed"
      role="feed"
      aria-label={props.label}
      ref={list}
      onKeyDown={onKeyDown}
      onFocusIn={(event) => (now.held = keyAround(event.target))}
      onFocusOut={(event) => (now.held = keyAround(event.relatedTarget))}
    >
      {parts}
    </div>
  );
}

function Gap({ px }: { readonly px: number }): JSX.Element {
  return <div class="gap" style={{ height: `${px}px` }} />;
}

function keyAround(target: EventTarget | null): string | null {
  return (target as Element | null)?.closest<HTMLElement>("[data-key]")?.dataset["key"] ?? null;
}

/** Heights, and what of the list is in view. */
class State<Item> {
  isAtEnd = true;
  /** The row that has the focus stays drawn. */
  held: string | null = null;
  readonly #heights = new Map<string, number>();
  #keys: readonly string[] = [];
  #at = new Map<string, number>();
  /** The upper edge of each row, and the end of the last. */
  #edges = new Float64Array(1);
  #items: readonly Item[] | null = null;
  #anchor: Anchor | null = null;
  #first = 0;
  #last = 0;
  #rows = new Map<string, Drawn<Item>>();

  constructor(private readonly turn: Signal<number>) {}

  lay(items: readonly Item[], keyOf: (item: Item) => string): void {
    if (items !== this.#items) {
      this.#items = items;
      this.#keys = items.map(keyOf);
      this.#at = new Map(this.#keys.map((key, index) => [key, index]));
    }
    this.#edges = new Float64Array(this.#keys.length + 1);
    this.#keys.forEach((key, index) => {
      this.#edges[index + 1] = this.#edges[index]! + (this.#heights.get(key) ?? ESTIMATED_ROW_PX);
    });
  }

  get #length(): number {
    return this.#edges.at(-1)!;
  }

  indexOf(key: string): number {
    return this.#at.get(key) ?? -1;
  }

  keyAt(index: number): string | undefined {
    return this.#keys[index];
  }

  between(from: number, to: number): number {
    return this.#edges[to]! - this.#edges[from]!;
  }

  /** The same element for the same item, so that a scroll draws only what is new in view. */
  row(item: Item, key: string, place: Place, draw: FeedProps<Item>["row"]): JSX.Element {
    const before = this.#rows.get(key);
    const isSame = before?.item === item && before.place.position === place.position && before.place.size === place.size;
    if (isSame) return before.row;
    const row = draw(item, place);
    this.#rows.set(key, { item, place, row });
    return row;
  }

  /** The index of the row at this distance from the beginning. */
  #indexAt(px: number): number {
    let low = 0;
    let high = this.#keys.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#edges[middle]! <= px) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  #top(viewPx: number): number {
    const index = this.#anchor ? this.indexOf(this.#anchor.key) : -1;
    if (this.isAtEnd || index < 0) return this.#length - viewPx;
    return this.#edges[index]! - this.#anchor!.fromTop;
  }

  /** The rows to draw, by rising index. */
  toDraw(view: HTMLElement | null): readonly number[] {
    if (this.#keys.length === 0) return [];
    const viewPx = view?.clientHeight || DEFAULT_VIEW_PX;
    const top = this.#top(viewPx);
    this.#first = this.#indexAt(top - DRAWN_BEYOND_PX);
    this.#last = this.#indexAt(top + viewPx + DRAWN_BEYOND_PX);
    const drawn = Array.from({ length: this.#last - this.#first + 1 }, (_, at) => this.#first + at);
    const held = this.held === null ? -1 : this.indexOf(this.held);
    if (held >= 0 && held < this.#first) drawn.unshift(held);
    if (held > this.#last) drawn.push(held);
    const keys = new Set(drawn.map((index) => this.#keys[index]!));
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key);
    return drawn;
  }

  /** Measures what was drawn, and puts the view where it was. */
  settle(list: HTMLElement, view: HTMLElement): void {
    let isChanged = false;
    for (const slot of list.querySelectorAll<HTMLElement>(":scope > .slot")) {
      const key = slot.dataset["key"]!;
      const { height } = slot.getBoundingClientRect();
      if (Math.abs((this.#heights.get(key) ?? -1) - height) < 0.5) continue;
      this.#heights.set(key, height);
      isChanged = true;
    }
    if (isChanged) {
      this.turn.value++;
      return;
    }
    const wanted = this.isAtEnd ? view.scrollHeight - view.clientHeight : list.offsetTop + this.#top(view.clientHeight);
    if (Math.abs(view.scrollTop - wanted) > 1) view.scrollTop = wanted;
  }

  /** Takes note of where the reader has scrolled to. */
  look(list: HTMLElement, view: HTMLElement): void {
    const { scrollTop, clientHeight, scrollHeight } = view;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < FOLLOW_DISTANCE_PX;
    const top = scrollTop - list.offsetTop;
    const index = this.#indexAt(top);
    const key = this.#keys[index];
    this.#anchor = key === undefined ? null : { key, fromTop: this.#edges[index]! - top };
    const isFirstDrawn = this.#first === 0 || this.#edges[this.#first]! <= top - LEFT_BEYOND_PX;
    const isLastDrawn =
      this.#last >= this.#keys.length - 1 || this.#edges[this.#last + 1]! >= top + clientHeight + LEFT_BEYOND_PX;
    if (!isFirstDrawn || !isLastDrawn) this.turn.value++;
  }
}
