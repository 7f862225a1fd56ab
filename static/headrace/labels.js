// Names of columns that Unfold writes before the cells of a list on a phone: as in the head of the list on a desk, the
// first letter is a capital, and no other (see admin.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const { dataset } of document.querySelectorAll("[data-label]"))
    dataset.label = dataset.label.charAt(0).toUpperCase() + dataset.label.slice(1);
});
