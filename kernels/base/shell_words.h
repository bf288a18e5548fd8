// A command as one line for a POSIX shell, and back.
//
// shell_line quotes words with single quotes where a shell would change them. shell_words reads
// such a line: words between blanks, single quotes, double quotes (where a backslash keeps the next
// character) and backslashes. It expands nothing. `&&` is a word of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/namespaces.h"
#include "kernels/base/status.h"

namespace ofsdp::base {

std::string shell_line(const std::vector<std::string>& words);

// Returns kInput if a quote is not closed.
Result<std::vector<std::string>> shell_words(std::string_view line);

}  // namespace ofsdp::base
