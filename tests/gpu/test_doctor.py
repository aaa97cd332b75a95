"""What `trainobs doctor` says of the GPUs."""

from __future__ import annotations

from tests.gpu.machine import NO_PERMISSION, uuid


def test_it_lists_each_device_with_what_it_gives(machine_of):
    machine = machine_of(3)
    machine.set(1, gpm=0)
    machine.set(2, fail__nvmlDeviceGetName=NO_PERMISSION)
    found, page = machine.run("doctor")
    assert found["driver"] == "999.1 (a stand-in)"
    assert found["why"] is None
    first, second, third = found["devices"]
    assert first == {"uuid": uuid(0), "name": "Stand-in 0", "gpm": "on"}
    assert second["gpm"] == "not supported by this device"
    assert third["why"]["found"].startswith(f"{uuid(2)}: ")
    assert page.splitlines() == [
        "gpu",
        "  driver 999.1 (a stand-in), devices: 3",
        f"  {uuid(0)}  Stand-in 0: clocks, power, memory; SM, tensor and memory activity",
        f"  {uuid(1)}  Stand-in 1: clocks, power, memory; "
        "no activity: not supported by this device",
        f"  {uuid(2)}  not read: {third['why']['found']}",
    ]
    assert machine.calls()[-1].name == "nvmlShutdown"


def test_of_a_board_in_mig_mode_each_instance_is_tried(machine):
    machine.set(0, mig=2)
    found, _ = machine.run("doctor")
    assert [device["uuid"] for device in found["devices"]] == [uuid(8), uuid(9)]
    assert {device["gpm"] for device in found["devices"]} == {"on"}


def test_without_nvml_it_says_why_and_what_to_do(machine):
    found, page = machine.run("doctor", LD_LIBRARY_PATH="")
    assert found["devices"] == []
    assert page.splitlines() == [
        "gpu",
        f"  not read: {found['why']['found']}",
        "  with a GPU of NVIDIA: install a driver of NVIDIA, with its NVML",
    ]


def test_without_the_package_it_names_it(machine):
    found, _ = machine.run("doctor_without_pynvml")
    assert found["why"]["do"] == "pip install nvidia-ml-py"


def test_an_old_package_of_the_same_name_is_told_apart(machine):
    found, _ = machine.run("doctor_with_old_pynvml")
    assert "too old for GPM" in found["why"]["found"]
