// fsdp-run: libonnx_fsdp.so's command line.
#include "library/onnx_fsdp.h"

int main(int argc, char** argv) { return onnx_fsdp_command(argc, argv); }
