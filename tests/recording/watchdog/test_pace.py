import pytest

from dsprof.recording.watchdog.pace import FIRST_STEP_NS, LEAST_NS, SECOND_NS, Pace


class Run:
    """A run of which the clock goes on by hand."""

    def __init__(self, after_s=None):
        self.now_ns, self.step, self.events = 0, 0, 0
        self.pace = Pace(0, SECOND_NS, None if after_s is None else after_s * SECOND_NS)

    def tick(self, seconds=1):
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            self.pace.tick(self.now_ns, (self.step, self.events), self.step)

    def steps(self, count, seconds):
        for _ in range(count):
            self.tick(seconds)
            self.step += 1
        self.tick()

    @property
    def is_overdue(self):
        return self.pace.quiet_ns(self.now_ns) > self.pace.threshold_ns


def test_the_first_step_may_take_minutes():
    run = Run()
    run.tick(280)
    assert not run.is_overdue
    run.tick(30)
    assert run.is_overdue
    assert run.pace.threshold_ns == FIRST_STEP_NS


def test_short_steps_wait_for_the_least_time():
    run = Run()
    run.steps(10, seconds=1)
    assert run.pace.threshold_ns == LEAST_NS


@pytest.mark.parametrize("silence_s", [50, 100, 199])
def test_a_step_ten_times_as_long_as_usual_is_no_silence(silence_s):
    run = Run()
    run.steps(10, seconds=10)
    run.tick(silence_s)
    assert not run.is_overdue


def test_silence_far_beyond_the_pace_is_too_long():
    run = Run()
    run.steps(10, seconds=10)
    run.tick(201)
    assert run.is_overdue


def test_a_silence_that_ended_by_itself_is_usual():
    run = Run()
    run.steps(5, seconds=1)
    run.tick(55)  # a checkpoint
    run.events += 1
    run.tick(150)
    assert not run.is_overdue
    run.tick(30)
    assert run.is_overdue


def test_anything_that_goes_on_ends_a_silence():
    run = Run(after_s=5)
    run.tick(5)
    run.events += 1
    run.tick()
    assert run.pace.quiet_ns(run.now_ns) == 0


def test_while_the_process_itself_was_stopped_nothing_is_silent():
    run = Run(after_s=5)
    run.tick(2)
    run.now_ns += 1000 * SECOND_NS  # all ranks were stopped, or a laptop slept
    run.tick(2)
    assert not run.is_overdue
    run.tick(5)
    assert run.is_overdue


def test_a_threshold_that_is_set_counts_from_the_first_step_on():
    run = Run(after_s=2)
    run.tick(4)
    assert run.is_overdue
