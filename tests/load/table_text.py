"""Lines of cells as text: in columns for a terminal, and as the documentation has them."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines with their cells in columns: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *[text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]]
        ).rstrip()
        for line in lines
    ]


def markdown_lines(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; the first one is its head."""
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return [rows[0], "|" + "---|" * len(lines[0]), *rows[1:]]


def full_labels(labels: Sequence[str]) -> list[str]:
    """Returns labels that stand alone: one that is indented belongs to the last one that is not."""
    full, head = [], ""
    for label in labels:
        if label.startswith(" "):
            full.append(f"{head}: {label.strip()}")
        else:
            head = label
            full.append(label)
    return full
