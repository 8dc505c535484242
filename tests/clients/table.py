"""The table of docs/clients.md, between its two marks; the rest of the page is written by hand."""

import pathlib

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/clients.md"
BEGIN, END = "<!-- written by tests/clients: begin -->", "<!-- written by tests/clients: end -->"
DOORS = {"e2b": "E2B", "daytona": "Daytona"}
REACHED = {"url": "address, HTTP", "domain": "domain, TLS"}


def row(client, steps):
    stumbled = [step for step, error in steps.items() if error]
    worked = [step for step, error in steps.items() if not error]
    result = "works"
    if stumbled:
        told = dict.fromkeys(client.stumbles.get(step, ("see the run", "unknown")) for step in stumbled)
        reasons = "; ".join(f"{reason} ({fault})" for reason, fault in told)
        result = f"stumbles at {', '.join(stumbled)}: {reasons}"
    cells = [client.name, client.version, DOORS[client.door], REACHED[client.reached], ", ".join(worked), result]
    return "| " + " | ".join(cells) + " |"


def text(clients, results):
    lines = ["| client | version | door | reached by | worked | result |", "|---|---|---|---|---|---|"]
    lines += [row(client, results[str(client)]) for client in clients]
    whole = sum(not any(results[str(client)].values()) for client in clients)
    return "\n".join([f"{whole} of {len(clients)} work in every step.", "", *lines])


def shown():
    """Name and version of every row that the page shows now."""
    between = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.split("|") for line in between.splitlines() if line.startswith("| ")][1:]
    return [f"{cells[1].strip()} {cells[2].strip()}" for cells in rows]


def write(clients, results):
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text(clients, results)}\n{END}{after}")


def drift(clients):
    """What the page shows and the list does not have, or the other way round."""
    named = {str(client) for client in clients}
    return sorted(named.symmetric_difference(shown()))
