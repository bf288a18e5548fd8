"""Measures the memory of the first GPU during a run, by NVML. Needs only the standard library."""
import ctypes
import threading


class Card:
    """`most`: the most bytes in use on the card, less the bytes in use at the start. It includes contexts and
    libraries. None without NVML. A thread reads it four times a second until `ended` is set."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.most, self.ended = None, threading.Event()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self.handle = ctypes.c_void_p()
            if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)):
                return
        except OSError:
            return
        self.first = self.used()
        self.most = 0
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def used(self):
        memory = self.Memory()
        return 0 if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) else memory.used

    def watch(self):
        while not self.ended.wait(0.25):
            self.most = max(self.most, self.used() - self.first)
