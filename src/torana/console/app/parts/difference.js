/** Above this product of lines, the difference is all old lines and all new lines. */
const LARGEST_TABLE = 4_000_000;

/** Return the lines of two texts as `{ kind: "same" | "added" | "removed", text }`, by their longest common part. */
export function difference(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const same = (lines) => lines.map((text) => ({ kind: "same", text }));
  const middle = changed(before.slice(start, before.length - end), after.slice(start, after.length - end));
  return [...same(before.slice(0, start)), ...middle, ...same(before.slice(before.length - end))];
}

function changed(before, after) {
  const removed = (text) => ({ kind: "removed", text });
  const added = (text) => ({ kind: "added", text });
  if (before.length * after.length > LARGEST_TABLE) return [...before.map(removed), ...after.map(added)];
  const width = after.length + 1;
  const lengths = new Uint16Array((before.length + 1) * width);
  for (let row = before.length - 1; row >= 0; row--) {
    for (let column = after.length - 1; column >= 0; column--) {
      lengths[row * width + column] = before[row] === after[column]
        ? lengths[(row + 1) * width + column + 1] + 1
        : Math.max(lengths[(row + 1) * width + column], lengths[row * width + column + 1]);
    }
  }
  const lines = [];
  let row = 0, column = 0;
  while (row < before.length && column < after.length) {
    if (before[row] === after[column]) { lines.push({ kind: "same", text: before[row] }); row++; column++; }
    else if (lengths[(row + 1) * width + column] >= lengths[row * width + column + 1]) lines.push(removed(before[row++]));
    else lines.push(added(after[column++]));
  }
  return [...lines, ...before.slice(row).map(removed), ...after.slice(column).map(added)];
}
