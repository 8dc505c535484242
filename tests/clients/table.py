"""The table of docs/clients.md, between its two marks; the rest of the page is written by hand.

Versions of a client that are reached alike and came to the same end share a row.
"""

import pathlib

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/clients.md"
BEGIN, END = "<!-- written by tests/clients: begin -->", "<!-- written by tests/clients: end -->"
DOORS = {"e2b": "E2B", "daytona": "Daytona"}
REACHED = {"url": "address", "domain": "domain, TLS", "open": "domain, TLS, `e2b.tokens_optional`"}
HEAD = ["| client | versions | door | reached by | tried | result |", "|---|---|---|---|---|---|"]


def result(client, steps):
    stumbled = [step for step, error in steps.items() if error]
    if not stumbled:
        return "works"
    reasons = {}
    for step in stumbled:
        reasons.setdefault(client.stumbles.get(step, ("see the run", "unknown")), []).append(step)
    return "; ".join(f"stumbles at {', '.join(at)}: {why} (*{whose}*)" for (why, whose), at in reasons.items())


def text(clients, results):
    rows = {}
    for client in clients:
        steps = results[str(client)]
        tried = "nothing" if "install" in steps else ", ".join(steps)
        key = (client.name, DOORS[client.door], REACHED[client.reached], tried, result(client, steps))
        rows.setdefault(key, []).append(client.version)
    lines = []
    for (name, door, reached, tried, came_to), versions in rows.items():
        lines.append(f"| {name} | {', '.join(versions)} | {door} | {reached} | {tried} | {came_to} |")
    whole = sum(not any(results[str(client)].values()) for client in clients)
    return "\n".join([f"{whole} of {len(clients)} work in every step.", "", *HEAD, *lines])


def shown():
    """Name and version of every client that the page shows now."""
    between = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.split("|") for line in between.splitlines() if line.startswith("| ")][1:]
    return {f"{cells[1].strip()} {version.strip()}" for cells in rows for version in cells[2].split(",")}


def write(clients, results):
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text(clients, results)}\n{END}{after}")


def drift(clients):
    """What the page shows and the list does not have, or the other way round."""
    return sorted({str(client) for client in clients}.symmetric_difference(shown()))
