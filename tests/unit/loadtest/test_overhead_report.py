"""Tables of the overhead benchmark."""

from loadtest.overhead import report


def test_added_time_is_beyond_the_same_round_without_a_proxy() -> None:
    """Each round is compared with its own direct measurement, so a slow round adds nothing."""
    direct = [{"ttft_idle_p50_ms": 0.4}, {"ttft_idle_p50_ms": 2.0}, {"ttft_idle_p50_ms": 0.5}]
    proxied = [{"ttft_idle_p50_ms": 0.9}, {"ttft_idle_p50_ms": 2.6}, {"ttft_idle_p50_ms": 1.1}]
    summary = report.summarize({"direct": direct, "kvgate": proxied})
    assert round(summary["kvgate"]["added_ttft_idle_p50_ms"] or 0, 6) == 0.6


def test_ratios_are_taken_to_floor_and_rival() -> None:
    """Ratios to the byte pipe and to SMG, and unknown where a base was not measured."""
    results = {
        "direct": [{}],
        "pipe": [{"us_per_request_2k": 20.0}],
        "smg": [{"us_per_request_2k": 300.0}],
        "kvgate": [{"us_per_request_2k": 90.0}],
    }
    ours = report.summarize(results)["kvgate"]
    assert ours["us_per_request_2k_to_floor"] == 4.5
    assert ours["us_per_request_2k_to_smg"] == 0.3
    assert ours["us_per_chunk_100_to_smg"] is None


def test_markdown_shows_each_proxy_once_per_table_and_hides_the_baseline() -> None:
    """Unknown figures are a dash; the measurement without a proxy is no row."""
    summary = {"direct": {"us_per_request_2k": 1.0}, "kvgate": {"us_per_request_2k": 91.4, "rss_idle": 62_300_000.0}}
    lines = report.markdown(summary, {"kvgate": "kvgate"}).splitlines()
    rows = [line for line in lines if line.startswith("| kvgate")]
    assert len(rows) == 2
    assert rows[0].startswith("| kvgate | 91 | - |")
    assert "| 62 |" in rows[0]
    assert not any("direct" in line for line in lines)


def test_tables_have_as_many_cells_in_every_line() -> None:
    """A Markdown table is rectangular."""
    lines = report.markdown({"kvgate": {}}, {"kvgate": "kvgate"}).split("\n\n")
    for block in lines:
        assert len({line.count("|") for line in block.splitlines()}) == 1
