// Copies the text of the element that a button with data-copy names.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = button.dataset.done;
  } catch {
    // No clipboard without TLS: select it, so that a key press copies it.
    getSelection().selectAllChildren(source);
  }
});
