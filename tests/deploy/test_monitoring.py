"""deploy/grafana.json and deploy/alerts.yml name metrics that a server has."""

import json
import re
import urllib.request

from conftest import ROOT
from server import Server


def named(text):
    names = re.findall(r"\bcove_[a-z_]+", text)
    # Prometheus makes three of a histogram.
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_dashboard_and_alerts_ask_for_what_there_is(place):
    server = Server(place)
    try:
        told = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    finally:
        server.leave()
    served = set(re.findall(r"^# TYPE (cove_\w+)", told, re.MULTILINE))
    dashboard = json.loads((ROOT / "deploy/grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 8
    assert named(" ".join(asked)) == served, "every metric is shown, and no other"
    assert named((ROOT / "deploy/alerts.yml").read_text()) <= served
