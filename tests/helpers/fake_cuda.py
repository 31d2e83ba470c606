"""What stands for `torch.cuda` where clocks of a device are tested without one."""


class FakeCuda:
    """A device whose queue runs 10 ms after it is asked; counts how often it is waited for."""

    def __init__(self):
        self.time, self.waits = 0.0, 0

    def current_stream(self, device):
        return self

    def synchronize(self, device):
        self.waits += 1

    def Event(self, enable_timing):  # noqa: N802
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self, stream):
        self.at = stream.time

    def elapsed_time(self, other):
        return other.at - self.at
