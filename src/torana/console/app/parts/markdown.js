/** Markdown as DOM nodes. It makes no HTML text, loads no image, and links only to harmless schemes. */
import {
  default_renderer, parser, parser_end, parser_write,
  EQUATION_BLOCK, EQUATION_INLINE, HREF, IMAGE, ITALIC_UND, LINK, SRC, STRONG_UND,
} from "../../vendor/markdown.js";
import { html, useLayoutEffect, useRef } from "../base/view.js";

const SCHEMES = new Set(["http:", "https:", "mailto:", "tel:"]);
const MARKS = { [ITALIC_UND]: "_", [STRONG_UND]: "__", [EQUATION_INLINE]: "$", [EQUATION_BLOCK]: "$$" };
const BRACKETS = { [EQUATION_INLINE]: ["\\(", "\\)"], [EQUATION_BLOCK]: ["\\[", "\\]"], [LINK]: ["[", "]"], [IMAGE]: ["![", "]"] };

/** The depth of nested elements, such as quotations. A browser lays them out recursively, and thousands crash the page. */
const DEPTH = 50;
/** The number of elements of a text. A browser needs more than a second for more. */
const ELEMENTS = 10_000;

/** The first letter is of a script from right to left. With `auto`, browsers read all children again for each new one. */
const RTL = /^\P{L}{0,999}[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** Show a text that may grow: only what is new is parsed. A text that the parser refuses is shown as it is. */
export function Markdown({ text, isComplete }) {
  const element = useRef(null);
  const drawn = useRef({ parser: null, text: "", isEnded: false });
  useLayoutEffect(() => {
    const before = drawn.current;
    if (before.isEnded && text === before.text) return;
    if (!before.parser || before.isEnded || !text.startsWith(before.text)) {
      element.current.replaceChildren();
      drawn.current = { parser: newParser(element.current), text: "", isEnded: false };
    }
    const now = drawn.current;
    now.tail?.remove();
    try {
      write(now.parser, text.slice(now.text.length));
      if (isComplete) end(now.parser, element.current);
      else now.tail = showPending(now.parser);
    } catch {
      // It refuses the rest, too.
      now.parser = {};
      element.current.textContent = text;
    }
    now.text = text;
    now.isEnded = isComplete;
  }, [text, isComplete]);
  return html`<div class="markdown" dir=${RTL.test(text) ? "rtl" : "ltr"} ref=${element}></div>`;
}

/** Write a text. Throw for a mark that does not end, such as an address: its cost grows with the square of its length. */
function write(own, text) {
  for (const piece of text.match(/[^]{1,999}/gu) ?? []) {
    parser_write(own, piece);
    if (own.pending.length > 4e3) throw own;
  }
}

/** Show the last character, which the parser holds until it knows the next, unless it can be a mark. */
function showPending({ pending, renderer }) {
  if (!/^[\p{L}\p{N}.,;:?)]$/u.test(pending)) return null;
  const tail = document.createTextNode(pending);
  renderer.data.nodes[renderer.data.index].append(tail);
  return tail;
}

function end(own, root) {
  parser_end(own);
  for (const link of root.querySelectorAll("a:not([href], [data-refused])")) link.replaceWith("[", ...link.childNodes);
}

function newParser(root) {
  const own = parser(safeRenderer(root, () => own));
  return own;
}

/**
 * Return the parser's renderer with three corrections. An image becomes a link, because loading it tells its
 * server that the message was read. Brackets without an address, and underscores and dollar signs that mark
 * nothing, such as in `MAX_SIZE`, stay text.
 */
function safeRenderer(root, parserOf) {
  const renderer = default_renderer(root);
  const { add_token, end_token, set_attr } = renderer;
  const marks = new WeakMap();
  let elements = 0;
  const current = (data) => data.nodes[data.index];

  function replaceCurrent(data, name) {
    const made = document.createElement(name);
    current(data).replaceWith(made);
    data.nodes[data.index] = made;
    return made;
  }

  return {
    ...renderer,
    add_token(data, type) {
      if (data.index > DEPTH || ++elements > ELEMENTS) throw data;
      const before = current(data).lastChild?.data?.at(-1) ?? "";
      add_token(data, type);
      const isEquation = type === EQUATION_INLINE || type === EQUATION_BLOCK;
      if (type === IMAGE) replaceCurrent(data, "a");
      if (type === LINK || type === IMAGE) marks.set(current(data), BRACKETS[type]);
      else if (isEquation || (MARKS[type] && /[\p{L}\p{N}]/u.test(before))) {
        const pair = parserOf().pending.startsWith("\\") ? BRACKETS[type] : [MARKS[type], MARKS[type]];
        marks.set(replaceCurrent(data, "span"), pair);
        current(data).append(pair[0]);
      }
    },
    end_token(data) {
      const node = current(data);
      const [open, close] = marks.get(node) ?? [];
      const end = close && parserOf().pending.startsWith(close[0]) ? close : "";
      if (node.tagName === "SPAN") node.append(end);
      else if (open && !node.matches("[href], [data-refused]")) node.replaceWith(open, ...node.childNodes, end);
      end_token(data);
    },
    set_attr(data, type, value) {
      const node = current(data);
      if (type !== HREF && type !== SRC) set_attr(data, type, value);
      else if (isHarmless(value)) {
        node.setAttribute("href", value);
        node.setAttribute("rel", "noopener noreferrer");
        node.setAttribute("target", "_blank");
        if (type === SRC && !node.textContent) node.textContent = value;
      } else node.dataset.refused = "true";
    },
  };
}

function isHarmless(address) {
  try {
    return SCHEMES.has(new URL(address).protocol);
  } catch {
    return false;
  }
}
