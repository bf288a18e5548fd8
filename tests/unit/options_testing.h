// Helpers for tests of options: command lines in, options or a refusal's one line out.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/cli/command_line.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

using Words = std::vector<std::string>;

inline Result<ParsedCommand> parse(Words words) { return parse_command(words, std::nullopt); }

// The options for `m.onnx` and these flags; a refusal fails the test.
inline Options options_of(Words flags) {
  flags.insert(flags.begin(), "m.onnx");
  Result<ParsedCommand> parsed = parse(flags);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message());
  return parsed.ok() ? parsed->options : Options();
}

inline std::string refusal(const Words& words) {
  Result<ParsedCommand> parsed = parse(words);
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.error().kind(), ErrorKind::kInput);
  EXPECT_EQ(parsed.error().message().find('\n'), std::string::npos);
  return parsed.error().message();
}

inline std::string refused(Words flags) {
  flags.insert(flags.begin(), "m.onnx");
  return refusal(flags);
}

}  // namespace ofsdp
