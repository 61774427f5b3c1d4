import { html } from "../base/view.js";

const WIDTH = 720, HEIGHT = 180, LEFT = 8, BOTTOM = 20;

/** Bars of one value each day as SVG; the table beside it has the same values in words. */
export function BarPlot({ label, bars, format }) {
  const highest = Math.max(...bars.map((bar) => bar.value), 0);
  const width = (WIDTH - LEFT) / Math.max(bars.length, 1);
  const step = Math.ceil(bars.length / 8);
  return html`<figure class="plot">
    <figcaption>${label}${highest > 0 && html` <span class="hint">${format(highest)}</span>`}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label} preserveAspectRatio="none">
      <line class="axis" x1="0" x2=${WIDTH} y1=${HEIGHT - BOTTOM} y2=${HEIGHT - BOTTOM} />
      ${bars.map((bar, place) => {
        const height = highest ? Math.max((bar.value / highest) * (HEIGHT - BOTTOM - 10), bar.value > 0 ? 2 : 0) : 0;
        return html`<g key=${bar.name}>
          <rect class="bar" x=${LEFT + place * width + width * 0.12} y=${HEIGHT - BOTTOM - height} width=${width * 0.76} height=${height}><title>${bar.name}: ${format(bar.value)}</title></rect>
          ${place % step === 0 && html`<text class="tick" x=${LEFT + place * width + width / 2} y=${HEIGHT - 5}>${bar.short}</text>`}
        </g>`;
      })}
    </svg>
  </figure>`;
}
