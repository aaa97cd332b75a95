"""NVML, as far as trainobs reads it: no setting of a device is ever written.

Everything here is for one thread: NVML calls go through one lock of the driver and take from 2 us
to some ms each, during which work of the process itself may be held up. So what costs much
(`nvmlDeviceGetPcieThroughput`, 20 ms; lists of processes) is not called at all.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from trainobs.core.errors import GpuError
from trainobs.gpu.device import Device

_INSTALL = "pip install nvidia-ml-py"


class Nvml:
    """The library, opened in this process: NVML must be begun after a fork, not before.

    Attributes:
        driver: version of the driver.

    Raises:
        GpuError: there is no NVML, or no driver behind it.
    """

    def __init__(self) -> None:
        self._nvml = _module()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise GpuError(
                "NVML cannot be opened", str(error), "install a driver of NVIDIA, with its NVML"
            ) from error
        try:
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            self.driver = "unknown"

    def close(self) -> None:
        """Close the library; devices must be closed before."""
        with suppress(self._nvml.NVMLError):  # the driver has gone: nothing is left to close
            self._nvml.nvmlShutdown()

    def uuids(self) -> list[str]:
        """Boards that this process may see, as UUIDs; MIG instances in place of their board.

        Raises:
            GpuError: they cannot be listed.
        """
        nvml = self._nvml
        try:
            boards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            handles = [handle for board in boards for handle in self._instances(board) or [board]]
            return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except nvml.NVMLError as error:
            raise GpuError("the GPUs cannot be listed", str(error), "see nvidia-smi -L") from error

    def open(self, uuid: str, visible: str | None = None) -> Device:
        """The device that CUDA knows under a UUID.

        Args:
            uuid: "GPU-...", "MIG-...", or without the first part, as torch tells it.
            visible: CUDA_VISIBLE_DEVICES of the process that uses it, by default of this one; says
                which MIG instance is meant where CUDA tells the UUID of the board.

        Raises:
            GpuError: there is none, or it cannot be told which.
        """
        if visible is None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        nvml = self._nvml
        try:
            handle = self._instance(self._find(uuid), visible)
            mig = bool(nvml.nvmlDeviceIsMigDeviceHandle(handle).value)
            board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if mig else handle
            return Device(
                nvml,
                handle,
                board,
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                name=_text(nvml.nvmlDeviceGetName(board)),
                driver=self.driver,
            )
        except nvml.NVMLError as error:
            raise GpuError(
                "a GPU cannot be read", f"{uuid}: {error}", "see that nvidia-smi -L lists it here"
            ) from error

    def _find(self, uuid: str) -> Any:
        nvml = self._nvml
        if not uuid.startswith(("GPU-", "MIG-")):
            try:
                return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                uuid = f"MIG-{uuid}"
        return nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def _instance(self, handle: Any, visible: str) -> Any:
        """The handle itself, or for a board in MIG mode the instance that the process can use."""
        nvml = self._nvml
        if nvml.nvmlDeviceIsMigDeviceHandle(handle).value:
            return handle
        instances = self._instances(handle)
        if instances is None:
            return handle
        uuids = [_text(nvml.nvmlDeviceGetUUID(instance)) for instance in instances]
        named = [uuid for uuid in visible.split(",") if uuid in uuids]
        if not named and len(uuids) == 1:
            named = uuids
        if not named:
            raise GpuError(
                "a MIG instance cannot be told from the others of its board",
                f"{len(uuids)} instances, CUDA_VISIBLE_DEVICES={visible!r}",
                "set CUDA_VISIBLE_DEVICES to the UUID of the instance, MIG-...",
            )
        return instances[uuids.index(named[0])]  # CUDA gives a process one instance: the first

    def _instances(self, board: Any) -> list[Any] | None:
        """MIG instances of a board; None where it is not in MIG mode."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(board)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return None
        except nvml.NVMLError:  # a device that has no MIG says "not supported"
            return None
        instances = []
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
            try:
                instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index))
            except nvml.NVMLError_NotFound:
                continue
        return instances


def _module() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise GpuError("NVML cannot be opened", str(error), _INSTALL) from error
    if not hasattr(pynvml, "c_nvmlGpmMetricsGet_t"):  # an old package of the same name hides it
        found = f"{pynvml.__file__} is too old for GPM"
        raise GpuError("NVML cannot be opened", found, f"pip uninstall pynvml; {_INSTALL}")
    return pynvml


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
