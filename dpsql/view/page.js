// Filter, picked window and order are kept in the address, so that a refreshed page keeps them: #filter&window=START&sort=COLUMN,DIRECTION
const field = document.getElementById("filter"), found = document.getElementById("found"), picker = document.getElementById("window");
const panels = [...document.querySelectorAll("section.panel")], tables = panels.filter((panel) => panel.querySelector("tbody"));
let sorted = "";
function remember() {
  const parts = [field ? encodeURIComponent(field.value) : ""];
  if (picker && picker.value !== panels[0].dataset.window) parts.push("window=" + picker.value);
  if (sorted) parts.push("sort=" + sorted);
  history.replaceState(null, "", "#" + parts.join("&"));
}
function show() {
  const wanted = field ? field.value.toLowerCase() : "";
  for (const panel of panels) {
    panel.hidden = picker ? panel.dataset.window !== picker.value : false;
    const rows = panel.querySelectorAll("tbody tr");
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.dataset.key.includes(wanted);
      shown += !row.hidden;
    }
    if (found && rows.length && !panel.hidden)
      found.textContent = wanted && !shown ? "no such key on this page: a key that is missing is not zero" : wanted ? `${shown} of ${rows.length}` : "";
  }
}
function order() {
  const [column, direction] = sorted.split(",").map(Number);
  for (const panel of tables) {
    const body = panel.querySelector("tbody"), heads = [...panel.querySelectorAll("th")], head = heads[column];
    const size = (row) => row.cells[column] && row.cells[column].dataset.size;
    if (!head || !body.rows.length) continue;
    const rows = [...body.rows].sort((a, b) => {
      const x = size(a), y = size(b);
      return direction * (x === undefined || y === undefined ? a.cells[column].textContent.localeCompare(b.cells[column].textContent, undefined, { numeric: true }) : x - y);
    });
    body.append(...rows);
    heads.forEach((each, i) => i === column ? each.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : each.removeAttribute("aria-sort"));
    const name = head.querySelector("button").textContent, line = panel.querySelector(".order"), ranked = panel.querySelector(".ranked");
    if (line) line.textContent = head.classList.contains("number") ? `by ${name}, the ${direction > 0 ? "smallest" : "largest"} first` : `by ${name}, ${direction > 0 ? "upwards" : "downwards"}`;
    if (!ranked) continue;
    const placed = rows[0].cells[column].dataset.place;
    ranked.textContent = placed ? name + head.dataset.among : heads[0].dataset.ranked;
    for (const row of rows) row.cells[0].textContent = (placed ? row.cells[column] : row.cells[0]).dataset.place;
  }
}
for (const panel of tables)
  panel.querySelectorAll("th").forEach((head, column) => {
    const button = head.querySelector("button");
    if (button) button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending", numbers = head.classList.contains("number");
      sorted = `${column},${(numbers ? down : head.getAttribute("aria-sort") !== "ascending") ? 1 : -1}`;
      order();
      remember();
    });
  });
const [typed, ...rest] = location.hash.slice(1).split("&");
if (field) {
  try { field.value = decodeURIComponent(typed); } catch { field.value = ""; }
  field.addEventListener("input", () => { show(); remember(); });
}
for (const part of rest) {
  const [name, value] = part.split("=");
  if (name === "window" && picker && [...picker.options].some((option) => option.value === value)) picker.value = value;
  const head = name === "sort" && /^\d+,-?1$/.test(value || "") && tables[0].querySelectorAll("th")[Number(value.split(",")[0])];
  if (head && head.querySelector("button")) { sorted = value; order(); }
}
if (picker) picker.addEventListener("change", () => { show(); remember(); });
show();
