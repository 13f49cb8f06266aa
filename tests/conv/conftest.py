"""What tests of convolutions share."""

from tests.helpers.threads import one_thread as one_thread
