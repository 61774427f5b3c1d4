/** Save a text or a blob as a file of the browser. */
export function saveAs(name, mediaType, content) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: mediaType }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
