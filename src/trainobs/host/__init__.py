"""What can be known of the kernel without privileges."""

from trainobs.host.facts import host_facts
from trainobs.host.sampler import HostSampler

__all__ = ["HostSampler", "host_facts"]
