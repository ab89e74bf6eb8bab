"""Rates as bars, in SVG: a group for each size and format, a bar for each way to write."""

from html import escape

COLOURS = ("#9e9e9e", "#f4a582", "#d6604d", "#2166ac", "#bdbdbd")
BAR, GAP, HEIGHT, LEFT, TOP = 14, 22, 260, 60, 40


def bars(rows, names):
    most = max(row[name] for row in rows for name in names) or 1
    step = BAR * len(names) + GAP
    width = LEFT + step * len(rows) + GAP
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 90}" font-family="sans-serif" '
             'font-size="11">']
    for tick in range(5):
        value = most * tick / 4
        y = TOP + HEIGHT * (1 - tick / 4)
        parts.append(f'<line x1="{LEFT}" x2="{width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.0f}</text>')
    parts.append(f'<text x="4" y="{TOP - 12}">MiB/s</text>')
    for number, name in enumerate(names):
        x = LEFT + number * 110
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>'
                     f'<text x="{x + 14}" y="17">{escape(name.replace("_", " "))}</text>')
    for group, row in enumerate(rows):
        x = LEFT + GAP / 2 + group * step
        for number, name in enumerate(names):
            height = HEIGHT * row[name] / most
            parts.append(f'<rect x="{x + number * BAR:.0f}" y="{TOP + HEIGHT - height:.0f}" width="{BAR - 2}" '
                         f'height="{height:.0f}" fill="{COLOURS[number % len(COLOURS)]}"/>')
        label = f"{row['format']} {row['file_bytes'] >> 20} MiB"
        parts.append(f'<text transform="translate({x + step / 3:.0f},{TOP + HEIGHT + 14}) rotate(35)">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])
