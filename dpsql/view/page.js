// Shows the rows whose key contains what is typed; the text is kept in the address, so a refreshed page keeps it.
const field = document.getElementById("filter"), rows = document.querySelectorAll("tbody tr"), found = document.getElementById("found");
function filter() {
  const wanted = field.value.toLowerCase();
  let shown = 0;
  for (const row of rows) {
    row.hidden = !row.dataset.key.includes(wanted);
    shown += !row.hidden;
  }
  found.textContent = wanted && !shown ? "no such key on this page: a key that is missing is not zero" : wanted ? `${shown} of ${rows.length}` : "";
  history.replaceState(null, "", wanted ? "#" + encodeURIComponent(field.value) : "#");
}
if (field) {
  try { field.value = decodeURIComponent(location.hash.slice(1)); } catch { field.value = ""; }
  field.addEventListener("input", filter);
  if (field.value) filter();
}
