"""The parent's end of the driver process, against small scripts in the place of the process."""

from __future__ import annotations

import json
import os
import select
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpucost_gpu_exporter import driver_link
from gpucost_gpu_exporter.driver_link import LONGEST_REPLY, MOST_LEFT_BEHIND, DriverDown, DriverLink

READING = {"driver_version": "580.1", "boards": [], "dropped": {}}
ANSWER = json.dumps({"reading": READING, "resume": {"GPU-1": 7}})
EVENT = '{"xid":["GPU-1",119]}'
# A child seizes its parent (PTRACE_SEIZE, allowed by PR_SET_PTRACER) and holds on as long as a file is there.
TRACED = """
import ctypes, os, pathlib, sys, time
hold = pathlib.Path({hold!r})
libc = ctypes.CDLL(None)
libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
traced = os.getpid()
if os.fork() == 0:
    if libc.ptrace(0x4206, traced, None, None):
        hold.with_name("hold.refused").touch()
    print("not a reading", flush=True)
    for stream in (0, 1):
        os.close(stream)
    while hold.exists():
        time.sleep(0.02)
    os._exit(0)
time.sleep(600)
"""


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def link_to(script: str, clock: Clock | None = None, **settings: object) -> DriverLink:
    command = (sys.executable, "-c", textwrap.dedent(script))
    random: Callable[[], float] = settings.pop("random", lambda: 0.0)  # type: ignore[assignment]
    settings = {"first_timeout_s": 0.0, "timeout_s": 60.0} | settings
    return DriverLink(command=command, clock=clock or Clock(), random=random, **settings)  # type: ignore[arg-type]


def echo(answer: str) -> str:
    return f"""
    import sys
    for line in sys.stdin:
        print({answer!r}, flush=True)
    """


def code_of(link: DriverLink) -> str:
    with pytest.raises(DriverDown) as down:
        link.look(0, False)
    return down.value.code


class TestReplies:
    def test_a_reading_comes_back_and_its_resume_state_is_kept(self) -> None:
        with closing(link_to(echo(ANSWER), resume={"GPU-0": 3})) as link:
            assert link.resume == {"GPU-0": 3}
            assert link.look(0, False).driver_version == "580.1"
            assert link.resume == {"GPU-0": 3, "GPU-1": 7}

    def test_the_first_request_alone_carries_the_resume_state(self) -> None:
        script = f"""
        import json, sys
        for line in sys.stdin:
            asked = json.loads(line)
            answer = json.loads({ANSWER!r})
            answer["reading"]["driver_version"] = json.dumps([asked["now_ns"], asked.get("resume")])
            print(json.dumps(answer), flush=True)
        """
        with closing(link_to(script, resume={"GPU-0": 3})) as link:
            assert json.loads(link.look(5, True).driver_version) == [5, {"GPU-0": 3}]
            assert json.loads(link.look(6, True).driver_version) == [6, None]

    def test_a_reply_in_pieces_is_put_together(self) -> None:
        script = f"""
        import sys, time
        for line in sys.stdin:
            for piece in ({ANSWER[:20]!r}, {ANSWER[20:]!r} + chr(10)):
                sys.stdout.write(piece)
                sys.stdout.flush()
                time.sleep(0.05)
        """
        with closing(link_to(script)) as link:
            assert link.look(0, False).driver_version == "580.1"

    def test_an_error_is_raised_with_its_code_and_text(self) -> None:
        answer = json.dumps({"error": {"code": "DRIVER_NOT_LOADED", "text": "Driver Not Loaded"}})
        with closing(link_to(echo(answer))) as link, pytest.raises(DriverDown) as down:
            link.look(0, False)
        assert (down.value.code, str(down.value)) == (
            "DRIVER_NOT_LOADED",
            "DRIVER_NOT_LOADED: Driver Not Loaded",
        )

    @pytest.mark.parametrize(
        "answer",
        [
            "hello",
            "[1]",
            "{}",
            '{"error": 3}',
            '{"reading": 3, "resume": {}}',
            '{"xid":["GPU-1"]}',
            json.dumps({"reading": READING | {"boards": [{"instances": 1}]}, "resume": {}}),
            json.dumps({"reading": READING, "resume": 3}),
            "[" * 20_000,
        ],
        ids=lambda answer: answer[:40],
    )
    def test_a_reply_that_is_none_is_a_protocol_error(self, answer: str) -> None:
        with closing(link_to(echo(answer))) as link:
            assert code_of(link) == "PROTOCOL"
            assert link._child is None
            assert link.left_behind == 0

    def test_two_replies_to_one_request_are_a_protocol_error(self) -> None:
        both = f"{ANSWER}\n{ANSWER}\n".encode()
        at_once = f"""
        import os, sys
        for line in sys.stdin:
            os.write(1, {both!r})
        """
        with closing(link_to(at_once)) as link:
            assert code_of(link) == "PROTOCOL"
        late = f"""
        import os, sys, time
        for line in sys.stdin:
            print({ANSWER!r}, flush=True)
            time.sleep(1)
            print({ANSWER!r}, flush=True)
        """
        with closing(link_to(late)) as link:
            assert link.look(0, False).boards == ()
            assert link._child is not None
            assert select.select([link._child.stdout], [], [], 60)[0]
            assert code_of(link) == "PROTOCOL"

    def test_a_line_without_an_end_is_given_up(self) -> None:
        script = """
        import os
        while True:
            os.write(1, b"x" * 65536)
        """
        with closing(link_to(script, timeout_s=60.0)) as link:
            with pytest.raises(DriverDown, match=f"{LONGEST_REPLY} bytes") as down:
                link.look(0, False)
            assert (down.value.code, link._child) == ("PROTOCOL", None)

    def test_a_process_that_ends_says_how(self) -> None:
        with closing(link_to("import sys; sys.stdin.readline(); sys.exit(4)")) as link:
            with pytest.raises(DriverDown, match="status 4") as down:
                link.look(0, False)
            assert down.value.code == "EXITED"

    def test_a_command_that_does_not_exist_is_a_failure_like_others(self) -> None:
        link = DriverLink(command=("no-such-command-here",), clock=Clock(), random=lambda: 0.0)
        assert code_of(link) == "EXITED"


class TestEvents:
    """XID events come in lines of their own, before, between and after the replies."""

    def test_each_is_handed_out_once_and_no_reply_is_taken_for_another(self) -> None:
        script = f"""
        import sys
        rest = ""
        for number, line in enumerate(sys.stdin):
            answer = {ANSWER!r}.replace("580.1", str(number))
            print(chr(10).join([rest + {EVENT!r}, answer, {EVENT!r}, {EVENT[:9]!r}]), end="", flush=True)
            rest = {EVENT[9:]!r} + chr(10)
        """
        with closing(link_to(script)) as link:
            assert link.look(0, False).driver_version == "0"
            assert link.take_xids() == {("GPU-1", 119): 2}
            assert link.look(0, False).driver_version == "1"
            assert link.take_xids() == {("GPU-1", 119): 3}
            assert not link.take_xids()

    def test_those_of_a_process_that_never_answers_are_kept(self) -> None:
        text = f"{EVENT}\n{EVENT[:9]}"
        script = f"import time; print({text!r}, end='', flush=True); time.sleep(600)"
        with closing(link_to(script, timeout_s=1.0)) as link:
            assert code_of(link) == "HUNG"
            assert link.take_xids() == {("GPU-1", 119): 1}
            # What the next process writes does not go on with an unfinished line of this one.
            assert code_of(link) == "HUNG"
            assert link.take_xids() == {("GPU-1", 119): 1}

    def test_they_are_no_reply(self) -> None:
        script = f"""
        import time
        while True:
            print({EVENT!r}, flush=True)
            time.sleep(0.01)
        """
        with closing(link_to(script, timeout_s=0.5)) as link:
            assert code_of(link) == "HUNG"

    def test_those_that_a_process_wrote_before_it_ended_are_read(self) -> None:
        script = f"""
        import sys, time
        sys.stdin.readline()
        print({ANSWER!r}, flush=True)
        time.sleep(0.5)
        print({EVENT!r}, flush=True)
        """
        with closing(link_to(script)) as link:
            link.look(0, False)
            assert link._child is not None
            link._child.wait(60)
            assert not link.take_xids()
            assert code_of(link) == "EXITED"
            assert link.take_xids() == {("GPU-1", 119): 1}

    def test_the_longest_line_is_not_the_longest_of_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver_link, "LONGEST_REPLY", len(ANSWER))
        answer = "\n".join([*[EVENT] * 100, ANSWER])
        with closing(link_to(echo(answer))) as link:
            assert link.look(0, False).driver_version == "580.1"
            assert link.take_xids() == {("GPU-1", 119): 100}


class TestHanging:
    def test_no_reply_in_time_kills_the_process(self) -> None:
        script = "import sys, time; sys.stdin.readline(); time.sleep(600)"
        with closing(link_to(script, timeout_s=0.4)) as link:
            assert code_of(link) == "HUNG"
            assert link.left_behind == 0

    def test_only_the_first_reply_of_a_process_may_take_the_longer_time(self) -> None:
        script = f"""
        import sys, time
        sys.stdin.readline()
        time.sleep(0.8)
        print({ANSWER!r}, flush=True)
        time.sleep(600)
        """
        with closing(link_to(script, timeout_s=0.2, first_timeout_s=60.0)) as link:
            for _ in range(2):
                assert link.look(0, False).driver_version == "580.1"
                with pytest.raises(DriverDown, match=r"within 0\.2 s") as down:
                    link.look(0, False)
                assert down.value.code == "HUNG"
            assert link.restarts == 1

    def test_a_first_reply_that_never_comes_is_waited_for_that_long(self) -> None:
        script = "import time; time.sleep(600)"
        with (
            closing(link_to(script, timeout_s=0.2, first_timeout_s=0.5)) as link,
            pytest.raises(DriverDown, match=r"within 0\.5 s"),
        ):
            link.look(0, False)

    def test_closed_by_another_thread_a_look_ends(self) -> None:
        with closing(link_to("import time; time.sleep(600)", timeout_s=60.0)) as link:
            codes: list[str] = []
            looking = threading.Thread(target=lambda: codes.append(code_of(link)))
            looking.start()
            while link._child is None:
                time.sleep(0.02)
            time.sleep(0.2)
            link.close()
            looking.join(60)
            assert codes == ["EXITED"]

    def test_a_trickle_does_not_stretch_the_timeout(self) -> None:
        script = """
        import sys, time
        while True:
            sys.stdout.write("x")
            sys.stdout.flush()
            time.sleep(0.05)
        """
        with closing(link_to(script, timeout_s=0.5)) as link:
            assert code_of(link) == "HUNG"

    def test_processes_that_cannot_be_reaped_are_counted_and_few(self, tmp_path: Path) -> None:
        """A tracer keeps a killed process from being reaped, as a call that never returns would."""
        hold = tmp_path / "hold"
        hold.touch()
        with closing(link_to(TRACED.format(hold=str(hold)), timeout_s=30.0, reap_s=0.1)) as link:
            codes = [code_of(link) for _ in range(MOST_LEFT_BEHIND + 1)]
            left_behind = link.left_behind
            refused = (tmp_path / "hold.refused").exists()
            hold.unlink()
            if refused:
                pytest.skip("this system does not let one process trace another")
            assert codes == ["PROTOCOL"] * MOST_LEFT_BEHIND + ["STUCK"]
            assert left_behind == MOST_LEFT_BEHIND
            deadline_s = time.monotonic() + 60
            while link.left_behind and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert link.left_behind == 0


class TestBackOff:
    def waits(self, jitter: float, count: int) -> list[float]:
        """How long after each failure in a row the next process was started."""
        clock, waits = Clock(), []
        with closing(link_to("import sys; sys.exit(1)", clock, random=lambda: jitter)) as link:
            assert code_of(link) == "EXITED"
            for restarts in range(count):
                failed_s = clock.now_s
                while link.restarts == restarts:
                    clock.now_s += 0.25
                    assert code_of(link) == "EXITED"
                waits.append(clock.now_s - failed_s)
        return waits

    def test_waits_grow_from_a_second_to_a_minute(self) -> None:
        assert self.waits(1.0, 8) == [1, 2, 4, 8, 16, 32, 60, 60]

    def test_jitter_is_full(self) -> None:
        assert self.waits(0.25, 4) == [0.25, 0.5, 1, 2]

    def test_while_waiting_the_last_failure_is_raised_at_once(self) -> None:
        clock = Clock()
        script = "import time; time.sleep(600)"
        with closing(link_to(script, clock, random=lambda: 1.0, timeout_s=0.3)) as link:
            assert code_of(link) == "HUNG"
            assert code_of(link) == "HUNG"
            assert link.restarts == 0

    def test_a_reading_ends_the_row_of_failures(self, tmp_path: Path) -> None:
        clock, works = Clock(), tmp_path / "works"
        script = f"""
        import os, sys
        sys.stdin.readline()
        if os.path.exists({str(works)!r}):
            print({ANSWER!r}, flush=True)
        """
        with closing(link_to(script, clock, random=lambda: 1.0)) as link:
            for wait_s in (0, 1, 2):
                clock.now_s += wait_s
                assert code_of(link) == "EXITED"
            works.touch()
            clock.now_s += 4
            assert link.look(0, False).driver_version == "580.1"
            assert code_of(link) == "EXITED"
            clock.now_s += 1
            assert link.look(0, False).driver_version == "580.1"
            assert link.restarts == 4


class TestClose:
    def test_no_process_is_left_and_closing_twice_is_safe(self) -> None:
        answer = json.dumps({"reading": READING | {"driver_version": "PID"}, "resume": {}})
        script = f"""
        import os, sys
        for line in sys.stdin:
            print({answer!r}.replace("PID", str(os.getpid())), flush=True)
        """
        link = link_to(script)
        process = int(link.look(0, False).driver_version)
        link.close()
        link.close()
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

    def test_a_closed_link_starts_again_when_asked(self) -> None:
        with closing(link_to(echo(ANSWER))) as link:
            link.look(0, False)
            link.close()
            assert link.look(0, False).driver_version == "580.1"
            assert link.restarts == 1
