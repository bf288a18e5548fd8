// fsdp-run: the command line of libonnx_fsdp.so.
#include "library/onnx_fsdp.h"

int main(int argc, char** argv) { return onnx_fsdp_command(argc, argv); }
