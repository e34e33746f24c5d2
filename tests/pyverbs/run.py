"""Runs rdma-core's own tests (its folder `tests`, which needs pyverbs) and writes what became of each, a line a test.

usage: run.py FOLDER LOG SECONDS_PER_TEST INTERFACE [options of rdma-core's run_tests.py: --dev, --port, --gid]

FOLDER holds the package `tests`. Tests that the log names are not run again: after a crash the next run goes on behind it.
Lines: `begin NAME`, then `pass`, `skip`, `fail` or `error` with the name and, after a tab, why. A test without a second line is
the one that was running when the process ended; one that takes longer than its time ends the process, with a traceback.

Tests of the connection manager look in /sys for the network interface below the device, and one looks there for a P_Key. No kernel knows
this device, so those two questions, and no others, are answered here: INTERFACE, whose address they use; what the device itself says.
"""

import faulthandler
import glob
import os
import sys
import unittest

FOLDER, LOG, SECONDS, INTERFACE = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
# What is made for one vendor's hardware, by the names of its files.
VENDORS = ("test_mlx5", "test_efa", "test_cuda")

sys.dont_write_bytecode = True
sys.path[:0] = [FOLDER, os.path.join(FOLDER, "tests")]
sys.argv[1:] = sys.argv[5:]

from args_parser import parser  # noqa: E402

parser.parse_args()

from pyverbs.device import Context  # noqa: E402
from tests.base import RDMATestCase  # noqa: E402
import tests.utils  # noqa: E402


def interface_below(self, dev, port, index):
    """In the place of a look at /sys/class/infiniband/DEVICE/device/net."""
    address, mac = self.get_ip_mac_address(INTERFACE)
    self.args.append([dev, port, index, address, mac])


RDMATestCase._get_ip_mac = interface_below


def pkey_below(device, port=1, index=0):
    """In the place of a look at /sys/class/infiniband/DEVICE/ports/PORT/pkeys/INDEX."""
    with Context(name=device) as context:
        return context.query_pkey(port, index)


tests.utils.get_pkey_from_kernel = pkey_below


class Result(unittest.TextTestResult):
    """Writes the log; everything else is unittest's."""

    def note(self, word, test, why=""):
        why = " ".join(str(why).split())[:300]
        LOG.write(f"{word} {test.id()}\t{why}\n")

    def startTest(self, test):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        self.note("begin", test)
        super().startTest(test)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.note("pass", test)
        super().addSuccess(test)

    def addSkip(self, test, reason):
        self.note("skip", test, reason)
        super().addSkip(test, reason)

    def addFailure(self, test, err):
        self.note("fail", test, err[1])
        super().addFailure(test, err)

    def addError(self, test, err):
        self.note("error", test, err[1])
        super().addError(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note("fail", test, err[1])
        super().addSubTest(test, subtest, err)


def each(suite):
    """The tests of a suite of suites."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from each(part)
        else:
            yield part


def known():
    """Names that the log has already."""
    if not os.path.exists(LOG):
        return set()
    with open(LOG, encoding="utf-8") as log:
        return {line.split("\t")[0].partition(" ")[2] for line in log}


files = sorted(glob.glob(os.path.join(FOLDER, "tests", "test_*.py")))
names = [os.path.basename(file)[: -len(".py")] for file in files]
modules = [f"tests.{name}" for name in names if not name.startswith(VENDORS)]
done = known()
LOG = open(LOG, "a", buffering=1, encoding="utf-8")
chosen = [test for test in each(unittest.defaultTestLoader.loadTestsFromNames(modules)) if test.id() not in done]
unittest.TextTestRunner(resultclass=Result, verbosity=0).run(unittest.TestSuite(chosen))
