/** Markdown as DOM nodes. It makes no HTML text, loads no image, and links only to harmless schemes. */
import { default_renderer, parser, parser_end, parser_write, HREF, IMAGE, SRC } from "../../vendor/markdown.js";
import { html, useEffect, useLayoutEffect, useRef } from "../base/view.js";

const SCHEMES = new Set(["http:", "https:", "mailto:", "tel:"]);

/** Show a text that may grow: only what is new is parsed. */
export function Markdown({ text, isComplete }) {
  const element = useRef(null);
  const drawn = useRef({ parser: null, text: "", isEnded: false });
  useLayoutEffect(() => {
    const before = drawn.current;
    const isContinued = before.parser && !before.isEnded && text.startsWith(before.text);
    if (!isContinued || (before.isEnded && text !== before.text)) {
      if (before.isEnded && text === before.text) return;
      element.current.replaceChildren();
      drawn.current = { parser: parser(safeRenderer(element.current)), text: "", isEnded: false };
    }
    const now = drawn.current;
    parser_write(now.parser, text.slice(now.text.length));
    now.text = text;
    if (isComplete) {
      parser_end(now.parser);
      now.isEnded = true;
    }
  }, [text, isComplete]);
  return html`<div class="markdown" dir="auto" ref=${element}></div>`;
}

function safeRenderer(root) {
  const renderer = default_renderer(root);
  const { add_token, set_attr } = renderer;
  return {
    ...renderer,
    add_token(data, type) {
      // An image becomes a link, because loading it tells its server that the message was read.
      add_token(data, type);
      if (type !== IMAGE) return;
      const link = document.createElement("a");
      data.nodes[data.index].replaceWith(link);
      data.nodes[data.index] = link;
    },
    set_attr(data, type, value) {
      const node = data.nodes[data.index];
      if (type !== HREF && type !== SRC) set_attr(data, type, value);
      else if (isHarmless(value)) {
        node.setAttribute("href", value);
        node.setAttribute("rel", "noopener noreferrer");
        node.setAttribute("target", "_blank");
        if (type === SRC && !node.textContent) node.textContent = value;
      }
    },
  };
}

export function isHarmless(address) {
  try {
    return SCHEMES.has(new URL(address).protocol);
  } catch {
    return false;
  }
}
