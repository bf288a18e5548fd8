#!/usr/bin/env python3
"""Writes ONNX's backend node tests as folders (onnx's own cmd_tools omits these cases).

    generate.py FOLDER      FOLDER/node/test_*/{model.onnx,test_data_set_0/{input,output}_*.pb}
"""
import argparse
import sys
import warnings

warnings.simplefilter("ignore")  # some cases overflow on purpose

import onnx.backend.test.case.node as node  # noqa: E402
from onnx.backend.test import cmd_tools  # noqa: E402


def main():
    cases = node.collect_testcases(None)
    cmd_tools.model_test.collect_testcases = lambda: cases
    cmd_tools.generate_data(argparse.Namespace(output=sys.argv[1]))


main()
