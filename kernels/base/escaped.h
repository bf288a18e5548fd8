// Text for terminals and logs. Names of files, nodes and tensors are whatever a stranger has
// written, and a terminal obeys control characters: they are shown as \x1b and the like.
//
// All lines for people go through `print_lines`; a name in a table is `escaped` before, since
// `print_lines` keeps newlines. Values of errors are escaped when the error is made (status.h).
//
// Threads: any. Errors: none; a stream says itself when it is broken.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

std::string escaped(std::string_view text);        // one line
std::string escaped_lines(std::string_view text);  // newlines stay
std::string escaped_json(std::string_view text);   // of JSON: what JSON itself need not escape

void print_lines(std::FILE* stream, std::string_view text);

}  // namespace ofsdp::base
