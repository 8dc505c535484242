"""What the driver knows of matplotlib, pandas and PIL. Loaded when one of them is first imported."""

import importlib.abc
import importlib.machinery
import importlib.util
import io
import sys

core = core  # given by python.py


def image_of(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", dpi=figure.dpi)
    return buffer.getvalue()


def enrich(value, data):
    figure_class = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    frame_class = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if figure_class is not None and isinstance(value, figure_class):
        data["image/png"] = image_of(value)
        add_chart(value, data)
        forget(value)
    elif frame_class is not None and isinstance(value, frame_class):
        try:
            data["application/vnd.cove.data+json"] = columns_of(value)
        except Exception:
            pass  # a table that has no plain form still has its text and HTML


def add_chart(figure, data):
    try:
        chart = core.companion("charts").chart_of(figure)
    except Exception:
        return  # a figure that is no chart still has its image
    if chart is not None:
        data["application/vnd.cove.chart+json"] = chart


def columns_of(frame):
    import pandas

    def plain(value):
        if isinstance(value, pandas.Timestamp):
            return value.isoformat()
        if hasattr(value, "item"):
            return value.item()
        return value

    return {str(name): [plain(value) for value in column] for name, column in frame.to_dict("list").items()}


def forget(figure):
    """A figure that was shown as a value is not shown again at the cell's end."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def show_figures(*arguments, **options):
    """Every open figure becomes a result, in the order of their numbers, and is closed."""
    from matplotlib._pylab_helpers import Gcf

    for manager in Gcf.get_all_fig_managers():
        figure = manager.canvas.figure
        data = {"text/plain": repr(figure), "image/png": image_of(figure)}
        add_chart(figure, data)
        core.driver.display(data)
    Gcf.destroy_all()


def after_cell():
    if "matplotlib._pylab_helpers" in sys.modules:
        show_figures()


class Backend(importlib.abc.Loader):
    """matplotlib's backend of ours: draws with Agg, shows with the driver."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.FigureCanvas = FigureCanvasAgg
        module.show = show_figures


class SavingShows(importlib.abc.Loader):
    """Wraps PIL.Image's own loader: Image.save also shows the image."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        save = module.Image.save

        def save_and_show(image, target, *arguments, **options):
            answer = save(image, target, *arguments, **options)
            if isinstance(target, str) or hasattr(target, "__fspath__"):
                buffer = io.BytesIO()
                save(image, buffer, format="PNG")
                core.driver.display({"text/plain": repr(image), "image/png": buffer.getvalue()})
            return answer

        module.Image.save = save_and_show


def find_spec(name, path, finder):
    if name == "cove_matplotlib":
        return importlib.machinery.ModuleSpec(name, Backend())
    finder.hooked.discard(name)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None:
        spec.loader = SavingShows(spec.loader)
    return spec
