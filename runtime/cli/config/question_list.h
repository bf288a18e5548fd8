// What `fsdp-run config` asks, in order: an option, the words of the question, and when it is asked,
// which earlier answers decide. Ownership: constants. Threads: any. Errors: none.
#pragma once

#include <span>
#include <string_view>

#include "runtime/options.h"

namespace ofsdp::cli {

struct Question {
  std::string_view option;
  std::string_view text;
  bool (*asked)(const Options&);
  bool closed = false;  // one of a few names
};

std::span<const Question> question_list();

}  // namespace ofsdp::cli
