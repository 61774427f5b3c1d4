import { config } from "../base/page_data.js";
import { html, useEffect, useRef, useState } from "../base/view.js";
import { t } from "../base/i18n.js";
import { bytes, number } from "../base/format.js";
import { ProblemNote } from "../parts/controls.js";

/** The box in which a message is written: text, files by button, paste and drop, and send or stop. */
export function Composer({ conversation, running, draft, onDraft }) {
  const { text, files } = draft;
  const [onBusy, setOnBusy] = useState("queue");
  const [problem, setProblem] = useState(null);
  const [isOver, setOver] = useState(false);
  const box = useRef(null);
  const picker = useRef(null);

  useEffect(() => { box.current?.focus({ preventScroll: true }); }, [conversation]);
  useEffect(() => {
    const element = box.current;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, 240)}px`;
  }, [text]);

  const length = [...text].length;
  const faults = [...fileFaults(files), ...(length > config.contentLimit ? [t("composer.too_long", { limit: number(config.contentLimit) })] : [])];
  const mayStop = Boolean(running);

  function add(list) {
    const added = [...list].map((blob) => ({ name: blob.name || t("composer.pasted"), size: blob.size, type: blob.type, blob }));
    if (added.length) onDraft({ text, files: [...files, ...added] });
  }

  async function send() {
    if (!text.trim() || faults.length) return;
    setProblem(null);
    onDraft({ text: "", files: [] });
    try {
      await conversation.send(text, files, running ? onBusy : "queue");
    } catch (failure) {
      setProblem(failure);
      onDraft({ text, files });
    }
  }

  function onKeyDown(event) {
    const isTouch = matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch) return;
    event.preventDefault();
    send();
  }

  function onPaste(event) {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  }

  return html`<form class="composer ${isOver ? "is-over" : ""}" onSubmit=${(event) => { event.preventDefault(); send(); }}
    onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}
    onDrop=${(event) => { event.preventDefault(); setOver(false); add(event.dataTransfer.files); }}>
    ${problem && html`<${ProblemNote} problem=${problem} />`}
    ${faults.map((fault) => html`<p class="fault" role="alert">${fault}</p>`)}
    ${files.length > 0 && html`<ul class="file-chips">${files.map((file, place) => html`<li>
      <${Preview} file=${file} />${file.name} <span class="hint">${bytes(file.size)}</span>
      <button type="button" class="button icon" aria-label=${t("composer.remove", { name: file.name })}
        onClick=${() => onDraft({ text, files: files.filter((_, other) => other !== place) })}>✕</button></li>`)}</ul>`}
    <textarea ref=${box} class="composer-text" rows="1" aria-label=${t("composer.message")} placeholder=${t("composer.placeholder")} dir="auto"
      value=${text} onInput=${(event) => onDraft({ text: event.target.value, files })} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
    <div class="composer-buttons">
      <input ref=${picker} type="file" multiple hidden onChange=${(event) => { add(event.target.files); event.target.value = ""; }} />
      <button type="button" class="button icon" aria-label=${t("composer.attach")} title=${t("composer.limits", { count: config.filesLimit, size: bytes(config.fileLimit) })}
        onClick=${() => picker.current.click()}>
        <svg viewBox="0 0 20 20" aria-hidden="true"><path d="M13.5 6.5 8 12a1.8 1.8 0 0 0 2.6 2.6l6-6a3.6 3.6 0 0 0-5.1-5.1l-6.2 6.2a5.4 5.4 0 0 0 7.6 7.6l4.6-4.6" /></svg>
      </button>
      ${files.length > 0 && html`<span class="hint">${t("composer.limits", { count: config.filesLimit, size: bytes(config.fileLimit) })}</span>`}
      <span class="spacer"></span>
      ${running && html`<label class="busy-choice"><span class="hidden">${t("composer.busy")}</span>
        <select value=${onBusy} onChange=${(event) => setOnBusy(event.target.value)}>
          <option value="queue">${t("busy.queue")}</option>
          <option value="steer">${t("busy.steer")}</option>
          <option value="interrupt">${t("busy.interrupt")}</option>
        </select></label>`}
      ${mayStop && html`<button type="button" class="button plain" onClick=${() => conversation.cancel(running.id).catch(setProblem)}>${t("action.stop")}</button>`}
      <button class="button primary" disabled=${!text.trim() || faults.length > 0}>${t("action.send")}</button>
    </div>
  </form>`;
}

/** Why these files cannot be sent: the limits that the gateway checks too. */
function fileFaults(files) {
  const faults = files.filter((file) => file.size > config.fileLimit)
    .map((file) => t("composer.file_too_large", { name: file.name, size: bytes(config.fileLimit) }));
  if (files.length > config.filesLimit) faults.push(t("composer.too_many_files", { count: config.filesLimit }));
  const total = files.reduce((sum, file) => sum + file.size, 0);
  // Base64 makes four characters of three bytes.
  if ((total * 4) / 3 > config.bodyLimit - 100_000) faults.push(t("composer.files_too_large", { size: bytes((config.bodyLimit * 3) / 4) }));
  return faults;
}

function Preview({ file }) {
  const [address, setAddress] = useState(null);
  useEffect(() => {
    if (!/^image\/(png|jpeg|gif|webp)$/.test(file.type)) return undefined;
    const made = URL.createObjectURL(file.blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return address && html`<img class="preview" src=${address} alt="" />`;
}
