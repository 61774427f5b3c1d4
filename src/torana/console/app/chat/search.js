import { html, useEffect, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useSignedIn } from "../base/context.js";
import { time } from "../base/format.js";
import { t } from "../base/i18n.js";
import { href } from "../base/router.js";
import { Dialog, Empty, ProblemNote, Spinner } from "../parts/controls.js";

/** Search all messages; a hit opens its conversation at the message. */
export function SearchDialog({ onClose }) {
  const { client } = useSignedIn();
  const [words, setWords] = useState("");
  const [state, setState] = useState({ items: null, problem: null });

  useEffect(() => {
    if (!words.trim()) {
      setState({ items: null, problem: null });
      return undefined;
    }
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const found = await client.get("v1/search", { q: words, limit: 30 });
        if (isCurrent) setState({ items: found.items, problem: null });
      } catch (problem) {
        if (isCurrent) setState({ items: null, problem });
      }
    }, 200);
    return () => { isCurrent = false; clearTimeout(timer); };
  }, [words, client]);

  return html`<${Dialog} title=${t("search.title")} onClose=${onClose} wide>
    <input type="search" class="search-box" aria-label=${t("search.words")} placeholder=${t("search.words")} autofocus value=${words} onInput=${(event) => setWords(event.target.value)} />
    ${state.problem && html`<${ProblemNote} problem=${state.problem} />`}
    ${words.trim() && !state.items && !state.problem && html`<${Spinner} />`}
    ${state.items?.length === 0 && html`<${Empty} title=${t("search.none")} hint=${t("search.none_hint")} />`}
    <ol class="hits">${state.items?.map((hit) => html`<li key=${hit.messageId}>
      <a href=${href(`chat/${segment(hit.sessionId)}`, { turn: hit.turnId, page: hit.page, before: hit.pageBefore })} onClick=${onClose}>
        <span class="hint">${hit.role === "user" ? t("search.you") : t("search.agent")} · ${hit.channelId} · ${time(hit.createdAt)}</span>
        <span class="snippet" dir="auto"><${Marked} hit=${hit} /></span>
      </a></li>`)}</ol>
  <//>`;
}

function Marked({ hit }) {
  const characters = [...hit.snippet];
  const parts = [];
  let place = 0;
  for (const { start, end } of hit.matches) {
    parts.push(characters.slice(place, start).join(""), html`<mark>${characters.slice(start, end).join("")}</mark>`);
    place = end;
  }
  return [...parts, characters.slice(place).join("")];
}
