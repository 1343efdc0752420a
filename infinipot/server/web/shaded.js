// A text whose kept tokens are shaded. Only what is in view is drawn.

const CHUNK = 1500;
const level = (share) => (share > 0.6 ? 4 : share > 0.3 ? 3 : share > 0.1 ? 2 : 1);

export class Shaded {
  // starts: where each token begins in the text, in UTF-16 units; it may grow.
  constructor(element, map, text) {
    Object.assign(this, { element, map, text, starts: [], kept: new Map(), read: 0 });
    element.replaceChildren();
    this.chunks = [];
    for (let from = 0; from < text.length;) {
      let to = Math.min(from + CHUNK, text.length);
      const line = text.indexOf("\n", to);
      to = line >= 0 && line - to < CHUNK ? line + 1 : to;
      const div = document.createElement("div");
      div.textContent = text.slice(from, to);
      div.className = "unread";
      this.chunks.push({ div, from, to, visible: false });
      element.append(div);
      from = to;
    }
    const byDiv = new Map(this.chunks.map((chunk) => [chunk.div, chunk]));
    this.observer = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) {
        const chunk = byDiv.get(target);
        chunk.visible = isIntersecting;
        if (isIntersecting) this.draw(chunk);
      }
    }, { root: element, rootMargin: "200px" });
    this.chunks.forEach((chunk) => this.observer.observe(chunk.div));
  }

  close() { this.observer.disconnect(); }

  // places, shares: tokens that are kept, by their number in the text, and how widely. read: tokens read so far.
  update(places, shares, read) {
    this.kept = new Map(places.map((place, n) => [place, shares[n]]));
    this.read = read;
    this.chunks.filter((chunk) => chunk.visible).forEach((chunk) => this.draw(chunk));
    this.drawMap();
  }

  token(position) { // the first token that begins at or after a position
    let low = 0, high = this.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] < position) low = middle + 1; else high = middle;
    }
    return low;
  }

  draw({ div, from, to }) {
    const first = this.token(from), last = this.token(to);
    if (!this.starts.length || first >= this.read) return;
    div.className = "";
    const parts = [];
    let run = "", runLevel = 0;
    const flush = () => {
      if (!run) return;
      if (!runLevel) parts.push(run);
      else {
        const mark = document.createElement("mark");
        mark.className = `k${runLevel}`;
        mark.textContent = run;
        parts.push(mark);
      }
      run = "";
    };
    const add = (text, share) => {
      const here = share === undefined ? 0 : level(share);
      if (here !== runLevel) { flush(); runLevel = here; }
      run += text;
    };
    if (first === last || this.starts[first] > from) add(this.text.slice(from, first < last ? this.starts[first] : to), this.kept.get(first - 1));
    for (let n = first; n < last; n++) {
      const end = n + 1 < last ? this.starts[n + 1] : to;
      add(this.text.slice(this.starts[n], end), this.kept.get(n));
    }
    flush();
    div.replaceChildren(...parts);
  }

  drawMap() {
    const canvas = this.map, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width; canvas.height = height;
    const total = Math.max(this.starts.length, this.read), style = getComputedStyle(document.documentElement);
    const paint = canvas.getContext("2d"), sums = new Float64Array(width);
    for (const [place, share] of this.kept) sums[Math.min(width - 1, Math.floor((place / total) * width))] += share;
    const per = total / width;
    paint.fillStyle = style.getPropertyValue("--line");
    paint.fillRect(0, height - 3, (this.read / total) * width, 3);
    paint.fillStyle = style.getPropertyValue("--accent");
    sums.forEach((sum, x) => {
      const tall = Math.min(1, Math.sqrt(sum / Math.max(1, per))) * (height - 4);
      paint.fillRect(x, height - 3 - tall, 1, tall);
    });
  }
}

// From offsets in characters, as the server counts them, to UTF-16 units. `base` is where the piece begins in the text.
export function units(piece, offsets, base) {
  if (!/[\ud800-\udfff]/.test(piece)) return offsets.map((offset) => base + offset);
  const out = [];
  let characters = 0, place = 0;
  for (const offset of offsets) {
    while (characters < offset && place < piece.length) {
      place += piece.codePointAt(place) > 0xffff ? 2 : 1;
      characters += 1;
    }
    out.push(base + place);
  }
  return out;
}

// Pieces that may be tokenized apart: cut where a word ends.
export function* pieces(text, size) {
  for (let from = 0; from < text.length;) {
    let to = Math.min(from + size, text.length);
    while (to < text.length && to > from + size / 2 && !(/[ \n]/.test(text[to]) && /[a-z0-9]/i.test(text[to - 1]))) to -= 1;
    yield { from, piece: text.slice(from, to) };
    from = to;
  }
}
