"""Values and failures in the forms in which they are shown."""

import sys

core = core  # given by python.py

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def of(value):
    """What IPython's formatters would give, for a template without IPython."""
    data = {"text/plain": repr(value)}
    kind = type(value)
    for method, mime in REPRESENTATIONS:
        render = getattr(kind, method, None)
        if render is not None:
            try:
                rendered = render(value)
            except Exception:
                continue
            data[mime] = rendered[0] if isinstance(rendered, tuple) else rendered
    bundle = getattr(kind, "_repr_mimebundle_", None)
    if bundle is not None:
        try:
            found = bundle(value, include=None, exclude=None)
            data.update(found[0] if isinstance(found, tuple) else found)
        except Exception:
            pass
    return enrich(value, data)


def refuse(value):
    raise TypeError(f"{type(value).__name__} is not JSON")


def enrich(value, data):
    """Adds what no object says of itself: JSON of lists and dicts, a table's columns, a figure's image and chart."""
    if isinstance(value, (list, dict)) and "application/json" not in data:
        try:
            text = core.dump(value, default=refuse, allow_nan=False)
            if len(text) <= core.MAX_VALUE:
                data["application/json"] = core.load(text)
        except (TypeError, ValueError, RecursionError):
            pass
    elif "pandas" in sys.modules or "matplotlib.figure" in sys.modules:
        core.companion("figures").enrich(value, data)
    return data


def fit(data):
    """What may be sent of the data, and why nothing else may."""
    kept, refused = {}, ""
    for kind, value in data.items():
        if value is None:
            continue
        if isinstance(value, bytes):
            import binascii

            value = binascii.b2a_base64(value, newline=False).decode()
        size = len(value) if isinstance(value, str) else len(core.dump(value))
        if size <= core.MAX_VALUE:
            kept[kind] = value
        elif not refused:
            refused = (
                f"the {kind} form of the result has {size} bytes, over the limit of {core.MAX_VALUE}: "
                "write it to a file, or show less of it"
            )
    return kept, refused


def explained(failure, code):
    """A failure's name, value and traceback; of the traceback, what is the user's."""
    import traceback

    value = str(failure)
    if isinstance(failure, SyntaxError) and code.lstrip()[:1] in ("!", "%"):
        value += " (`!` and `%` lines need IPython in the template: pip install ipython)"
    trace = failure.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(failure), failure, trace))
    return type(failure).__name__, value, text
