"""Runs a program's text as `python3 -` would, and tells the charts of the figures that it shows.

Standard input brings the sources `charts` and `code`, told by a first line of names and sizes; the first argument is the mark that
each chart is told behind, as JSON to the end of the line.
"""

import sys


def begin():
    import os

    read, sources = sys.stdin.buffer, {}
    for part in read.readline().decode().split():
        name, size = part.split(":")
        sources[name] = read.read(int(size)).decode("utf-8", "replace")
    os.environ["MPLBACKEND"] = "module://cove_charts_backend"
    sys.meta_path.insert(0, Backend)
    Backend.source, Backend.mark = sources["charts"], sys.argv.pop(1)
    sys.argv[0] = "-"
    return sources["code"]


class Backend:
    """matplotlib's backend of ours: draws with Agg; what it shows is told."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "cove_charts_backend":
            import importlib.machinery

            return importlib.machinery.ModuleSpec(name, cls)

    @classmethod
    def create_module(cls, spec):
        return None

    @classmethod
    def exec_module(cls, module):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.FigureCanvas, module.show = FigureCanvasAgg, cls.show

    @classmethod
    def reader(cls):
        import types

        charts = types.ModuleType("cove_charts")
        exec(compile(cls.source, "<cove charts>", "exec"), charts.__dict__)
        # This dialect has numbers alone: dates and categories are the places where they are drawn.
        charts.is_dates = charts.is_categories = lambda axis: False
        charts.coordinate = lambda value, axis: charts.plain(float(axis.convert_units(value)))
        return charts

    @classmethod
    def show(cls, *arguments, **options):
        from matplotlib._pylab_helpers import Gcf

        charts = cls.reader()
        for manager in Gcf.get_all_fig_managers():
            try:
                cls.tell(charts, manager.canvas.figure)
            except Exception:
                pass  # a figure that is no chart was shown to nobody
        Gcf.destroy_all()

    @classmethod
    def tell(cls, charts, figure):
        import base64
        import io
        import json

        chart = charts.chart_of(figure)
        if chart is not None:
            image = io.BytesIO()
            figure.savefig(image, format="png", bbox_inches="tight", dpi=figure.dpi)
            chart["png"] = base64.b64encode(image.getvalue()).decode()
            sys.__stdout__.write(f"{cls.mark}{json.dumps(chart, default=str)}\n")
            sys.__stdout__.flush()


def complain(kind, failure, trace):
    """The traceback without what is not the user's."""
    import traceback

    traceback.print_exception(kind, failure, trace.tb_next if trace else None)


sys.excepthook = complain
code = compile(begin(), "<stdin>", "exec")
main = sys.modules["__main__"] = type(sys)("__main__")
main.__builtins__ = __builtins__
exec(code, main.__dict__)
