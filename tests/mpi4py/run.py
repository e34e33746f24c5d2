"""Runs mpi4py's own tests (its test/main.py) and writes what became of each, a line a test, one file a rank.

usage: run.py TEST_FOLDER RESULT_FOLDER SECONDS_PER_TEST [arguments of mpi4py's main.py]

Lines: `begin NAME`, then one of `ok`, `skip`, `fail`, `error` with the name. A test without a second line is the one that
was running when the job ended. A test that takes longer than its time ends its rank, and thereby the job, with a traceback.
Files, because the output of several ranks gets mixed on its way through mpirun.
"""

import faulthandler
import os
import sys
import unittest

TESTS, RESULTS, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
RANK = os.environ["OMPI_COMM_WORLD_RANK"]
LOG = open(os.path.join(RESULTS, f"rank-{RANK}"), "w", buffering=1)


class Result(unittest.TextTestResult):
    """Writes the log; everything else is unittest's."""

    def note(self, word, test):
        LOG.write(f"{word} {test.id().split(' ')[0]}\n")

    def startTest(self, test):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        self.note("begin", test)
        super().startTest(test)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.note("ok", test)
        super().addSuccess(test)

    def addSkip(self, test, reason):
        self.note("skip", test)
        super().addSkip(test, reason)

    def addFailure(self, test, err):
        self.note("fail", test)
        super().addFailure(test, err)

    def addError(self, test, err):
        self.note("error", test)
        super().addError(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note("fail", test)
        super().addSubTest(test, subtest, err)


class Runner(unittest.TextTestRunner):
    """unittest's runner with our log."""

    resultclass = Result


sys.dont_write_bytecode = True
sys.path.insert(0, TESTS)
os.chdir(RESULTS)

from main import TestProgram  # noqa: E402

TestProgram(module=None, argv=["main.py", *sys.argv[4:]], testRunner=Runner)
