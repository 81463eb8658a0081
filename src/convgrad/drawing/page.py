"""The page that an animation is shown in."""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@title@</title>
<style>
  :root { color-scheme: light dark; }
  body { margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem; font: 16px/1.4 system-ui, sans-serif; }
  svg { display: block; max-width: 100%; height: auto; }
  form { display: flex; gap: .6rem; align-items: center; margin: 1rem 0; flex-wrap: wrap; }
  button { font: inherit; min-width: 2.6rem; padding: .3rem .7rem; }
  input { flex: 1; min-width: 10rem; }
  [data-step] { cursor: pointer; }
  .unseen { position: absolute; left: -99rem; }
</style>
@picture@
<form onsubmit="return false">
  <button id="back" aria-label="one step back">&#9664;</button>
  <button id="play" aria-label="play or pause">play</button>
  <button id="next" aria-label="one step on">&#9654;</button>
  <input id="at" type="range" min="0" value="0" aria-label="step">
  <output id="count"></output>
  <label>speed <select id="speed"><option value="2">½</option><option value="1" selected>1</option>
  <option value=".5">2</option><option value=".2">5</option></select></label>
</form>
<p>Arrow keys step, the space bar plays and pauses, and a click on the result goes to that element.</p>
<p class="unseen" id="said" aria-live="polite"></p>
<script>
const data = @data@, wait = @wait@;
const find = id => document.getElementById(id), rest = new Map();
let step = 0, timer = 0, changed = [];
function put(id, values, keep) {
  const item = find(id), saved = {};
  for (const [name, value] of Object.entries(values)) {
    if (name === "#") { saved[name] = item.textContent; item.textContent = value; continue; }
    saved[name] = item.getAttribute(name) || "";
    if (value === "") item.removeAttribute(name); else item.setAttribute(name, value);
  }
  if (keep) rest.set(id, saved);
}
function show(to) {
  for (const id of changed) put(id, rest.get(id), false);
  step = (to + data.steps.length) % data.steps.length;
  changed = Object.keys(data.steps[step]);
  for (const id of changed) put(id, data.steps[step][id], true);
  find("at").value = step;
  find("count").value = `${step + 1} of ${data.steps.length}`;
  if (!timer) find("said").textContent = data.texts[step];
}
function tick() { show(step + 1); timer = setTimeout(tick, wait * find("speed").value); }
function play(on) {
  clearTimeout(timer);
  timer = 0;
  find("play").textContent = on ? "pause" : "play";
  if (on) timer = setTimeout(tick, wait * find("speed").value);
}
find("at").max = data.steps.length - 1;
find("at").oninput = event => { play(false); show(+event.target.value); };
find("back").onclick = () => { play(false); show(step - 1); };
find("next").onclick = () => { play(false); show(step + 1); };
find("play").onclick = () => play(!timer);
document.onkeydown = event => {
  if (event.target.tagName === "SELECT" || event.target.tagName === "INPUT") return;
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    play(false);
    show(step + (event.key === "ArrowRight" ? 1 : -1));
  } else if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); play(!timer); }
};
const cells = [...document.querySelectorAll("svg rect[id]")].filter(
  item => item.id.startsWith(data.solved + ".") && /^[0-9,]+$/.test(item.id.slice(2)));
const order = (a, b) => {
  const [p, q] = [a, b].map(item => item.id.slice(2).split(",").map(Number));
  return p[0] - q[0] || (p[1] || 0) - (q[1] || 0);
};
cells.sort(order).forEach((item, i) => { item.dataset.step = i; item.onclick = () => { play(false); show(i); }; });
show(0);
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play(true);
</script>
</html>
"""
