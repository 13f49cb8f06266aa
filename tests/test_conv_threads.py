"""Calls in a thread that knows nothing yet."""

import pytest
import torch

from convtime.conv.threads import in_fresh_thread


def test_a_fresh_thread_gives_back_results_and_errors(device):
    def fail():
        raise KeyError("inside")

    assert in_fresh_thread(torch.is_grad_enabled, device) is False
    with pytest.raises(KeyError, match="inside"):
        in_fresh_thread(fail, device)


@pytest.mark.cuda
def test_a_fresh_thread_runs_on_the_current_stream():
    stream = torch.cuda.Stream()
    device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.stream(stream):
        assert in_fresh_thread(torch.cuda.current_stream, device) == stream
