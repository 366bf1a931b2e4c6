// Filter, picked window and order are kept in the address, so that a refreshed page keeps them: #filter&window=START&sort=COLUMN,DIRECTION
const field = document.getElementById("filter"), found = document.getElementById("found"), picker = document.getElementById("window");
const panels = [...document.querySelectorAll("section.panel")];
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
    if (found && !panel.hidden)
      found.textContent = wanted && !shown ? "no such key on this page: a key that is missing is not zero" : wanted ? `${shown} of ${rows.length}` : "";
  }
}
function order() {
  const [column, direction] = sorted.split(",").map(Number);
  for (const panel of panels) {
    const body = panel.querySelector("tbody"), heads = panel.querySelectorAll("th");
    const size = (row) => row.cells[column] && row.cells[column].dataset.size;
    const rows = [...body.rows].sort((a, b) => {
      const x = size(a), y = size(b);
      return direction * (x === undefined || y === undefined ? a.cells[column].textContent.localeCompare(b.cells[column].textContent) : x - y);
    });
    body.append(...rows);
    heads.forEach((head, i) => i === column ? head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
  }
}
for (const panel of panels)
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
  if (name === "sort" && /^\d+,-?1$/.test(value || "") && panels[0].querySelectorAll("th")[Number(value.split(",")[0])]) { sorted = value; order(); }
}
if (picker) picker.addEventListener("change", () => { show(); remember(); });
show();
