"""What tests of layers share."""

from tests.helpers.threads import one_thread as one_thread
