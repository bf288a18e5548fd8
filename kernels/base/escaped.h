// Text for terminals and logs. A stranger may have written the names of files, nodes and tensors,
// and a terminal obeys control characters: they are shown as \x1b and the like.
//
// All lines for people go through `print_lines`; a name in a table is `escaped` before, since
// `print_lines` keeps newlines. Values of errors are escaped when the error is made (status.h).
//
// A stream that breaks has its error state set.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

std::string escaped(std::string_view text);        // one line
std::string escaped_lines(std::string_view text);  // newlines stay
std::string escaped_json(std::string_view text);   // of JSON: characters that JSON need not escape

void print_lines(std::FILE* stream, std::string_view text);

}  // namespace ofsdp::base
