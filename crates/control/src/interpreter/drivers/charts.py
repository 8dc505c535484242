"""Reads the data back out of a matplotlib figure: line, scatter, bar, pie and box charts, one per pair of axes.

The shapes are those that clients of E2B's code interpreter parse: every chart has type, title and elements; charts on
two axes have labels and units; charts of points have ticks and scales.
"""

import math
import re

from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.dates import AutoDateFormatter, ConciseDateFormatter, DateFormatter, num2date
from matplotlib.patches import PathPatch, Wedge
from matplotlib.text import Text

UNIT = re.compile(r"\(([^()]*)\)\s*$")


def chart_of(figure):
    charts = [chart for chart in (axes_chart(axes) for axes in figure.axes) if chart is not None]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else None
    return {"type": "superchart", "title": title or None, "elements": charts}


def axes_chart(axes):
    for reader in (pie, box, bar, scatter, line):
        chart = reader(axes)
        if chart is not None:
            chart["title"] = axes.get_title() or None
            return chart
    if not axes.has_data():
        return None
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def plain(value):
    """A value JSON knows."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def label_and_unit(label):
    found = UNIT.search(label)
    return label or None, found.group(1) if found else None


def plane(axes):
    """Labels and units of the two axes."""
    x_label, x_unit = label_and_unit(axes.get_xlabel())
    y_label, y_unit = label_and_unit(axes.get_ylabel())
    return {"x_label": x_label, "y_label": y_label, "x_unit": x_unit, "y_unit": y_unit}


def is_dates(axis):
    return isinstance(axis.get_major_formatter(), (AutoDateFormatter, ConciseDateFormatter, DateFormatter))


def is_categories(axis):
    return type(axis.get_major_formatter()).__name__ == "StrCategoryFormatter"


def ticks(axis, name):
    places = [plain(value) for value in axis.get_majorticklocs()]
    labels = [label.get_text() for label in axis.get_ticklabels()]
    scale = axis.get_scale()
    if is_dates(axis):
        scale = "datetime"
        places = [num2date(value).isoformat() for value in axis.get_majorticklocs()]
    elif is_categories(axis):
        scale = "categorical"
        places = labels
    return {f"{name}_ticks": places, f"{name}_tick_labels": labels, f"{name}_scale": scale}


def points_chart(axes, kind, elements):
    axes.figure.canvas.draw()  # tick labels are made when drawn
    return {"type": kind, **plane(axes), **ticks(axes.xaxis, "x"), **ticks(axes.yaxis, "y"), "elements": elements}


def coordinate(value, axis):
    if is_dates(axis):
        if isinstance(value, (int, float)):
            return num2date(value).isoformat()
        return plain(value)
    return plain(value)


def name_of(artist, number):
    label = artist.get_label()
    return f"{label}" if label and not str(label).startswith("_") else f"Series {number}"


def line(axes):
    elements = []
    for number, artist in enumerate(axes.get_lines()):
        xs, ys = artist.get_xdata(orig=True), artist.get_ydata(orig=True)
        pairs = [[coordinate(x, axes.xaxis), coordinate(y, axes.yaxis)] for x, y in zip(xs, ys)]
        elements.append({"label": name_of(artist, number), "points": pairs})
    return points_chart(axes, "line", elements) if elements else None


def scatter(axes):
    elements = []
    for number, artist in enumerate(c for c in axes.collections if isinstance(c, PathCollection)):
        pairs = [
            [coordinate(plain(x), axes.xaxis), coordinate(plain(y), axes.yaxis)] for x, y in artist.get_offsets()
        ]
        elements.append({"label": name_of(artist, number), "points": pairs})
    return points_chart(axes, "scatter", elements) if elements else None


def bar(axes):
    containers = [container for container in axes.containers if isinstance(container, BarContainer)]
    if not containers:
        return None
    axes.figure.canvas.draw()
    elements, horizontal = [], False
    for number, container in enumerate(containers):
        horizontal = getattr(container, "orientation", "vertical") == "horizontal"
        axis = axes.yaxis if horizontal else axes.xaxis
        labels = [label.get_text() for label in axis.get_ticklabels()]
        places = list(axis.get_majorticklocs())
        for position, patch in enumerate(container):
            if horizontal:
                centre, value = patch.get_y() + patch.get_height() / 2, patch.get_width()
            else:
                centre, value = patch.get_x() + patch.get_width() / 2, patch.get_height()
            label = tick_label(centre, places, labels, position) if len(labels) else str(position)
            elements.append({"label": label, "group": name_of(container, number), "value": plain(value)})
    labels = plane(axes)
    if horizontal:  # told as if it stood upright
        labels = {
            "x_label": labels["y_label"], "y_label": labels["x_label"],
            "x_unit": labels["y_unit"], "y_unit": labels["x_unit"],
        }
    return {"type": "bar", **labels, "elements": elements}


def tick_label(centre, places, labels, position):
    nearest = min(range(len(places)), key=lambda index: abs(places[index] - centre))
    spacing = abs(places[1] - places[0]) if len(places) > 1 else 1
    if abs(places[nearest] - centre) <= spacing / 2 and labels[nearest]:
        return labels[nearest]
    return str(plain(centre)) if position >= len(labels) else labels[position]


def pie(axes):
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    if not wedges:
        return None
    texts = [text.get_text() for text in axes.texts if isinstance(text, Text)]
    step = 2 if len(texts) >= 2 * len(wedges) else 1  # label, percentage, label, percentage …
    elements = []
    for number, wedge in enumerate(wedges):
        label = wedge.get_label()
        if not label or label.startswith("_"):
            label = texts[number * step] if number * step < len(texts) else f"Wedge {number}"
        angle = round(float(abs(wedge.theta2 - wedge.theta1)), 4)  # matplotlib computes them in single precision
        elements.append({"label": label, "angle": plain(angle), "radius": plain(wedge.r)})
    return {"type": "pie", "elements": elements}


def box(axes):
    """A box plot is lines and, with patch_artist, patches: it is known by lines of five points that close a rectangle."""
    boxes = [patch.get_path().vertices for patch in axes.patches if isinstance(patch, PathPatch)]
    if not boxes:
        boxes = [a.get_xydata() for a in axes.get_lines() if len(a.get_xydata()) == 5 and closes(a.get_xydata())]
    if not boxes:
        return None
    axes.figure.canvas.draw()
    upright = box_stands(axes, boxes)
    value, place = (1, 0) if upright else (0, 1)
    axis = axes.xaxis if upright else axes.yaxis
    labels = [label.get_text() for label in axis.get_ticklabels()]
    elements = []
    for number, corners in enumerate(boxes):
        low, high = corners[:, value].min(), corners[:, value].max()
        left, right = corners[:, place].min(), corners[:, place].max()
        centre = (left + right) / 2
        median, whiskers, outliers = (low + high) / 2, [low, high], []
        for artist in axes.get_lines():
            data = artist.get_xydata()
            if len(data) == 0 or not (left - 1e-9 <= data[:, place].min() and data[:, place].max() <= right + 1e-9):
                continue
            if artist.get_linestyle() in ("None", "none", ""):
                outliers += [plain(v) for v in data[:, value]]
            elif len(data) == 2 and abs(data[0, place] - data[1, place]) < 1e-9:
                whiskers += [data[0, value], data[1, value]]
            elif len(data) == 2 and data[0, value] == data[1, value] and low <= data[0, value] <= high:
                if abs(data[0, place] - left) < 1e-9 and abs(data[1, place] - right) < 1e-9:
                    median = data[0, value]
        elements.append({
            "label": labels[number] if number < len(labels) else f"Box {number}",
            "min": plain(min(whiskers)), "first_quartile": plain(low), "median": plain(median),
            "third_quartile": plain(high), "max": plain(max(whiskers)), "outliers": outliers,
        })
    return {"type": "box_and_whisker", **plane(axes), "elements": elements}


def closes(data):
    return abs(data[0] - data[-1]).max() < 1e-9


def box_stands(axes, boxes):
    """Upright boxes share their width and differ in height: whiskers tell it surest, they run along the value."""
    for artist in axes.get_lines():
        data = artist.get_xydata()
        if len(data) == 2 and artist.get_linestyle() not in ("None", "none", ""):
            if data[0, 0] == data[1, 0] and data[0, 1] != data[1, 1]:
                return True
            if data[0, 1] == data[1, 1] and data[0, 0] != data[1, 0]:
                inside = any(abs(data[0, 0] - b[:, 0].min()) < 1e-9 and abs(data[1, 0] - b[:, 0].max()) < 1e-9 for b in boxes)
                if not inside:
                    return False
    return True
