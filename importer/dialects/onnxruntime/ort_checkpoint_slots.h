// The numbers of ort_checkpoint.h's tables, for who reads and who writes them.
//
// Ownership, threads, errors: none.
#pragma once

namespace ofsdp::importer {

inline constexpr const char* kOrtCheckpointIdentifier = "ODTC";

enum OrtCheckpointSlots {
  kVersion = 0,
  kModule = 1,
  kGroups = 2,
  kProperties = 3,
  kTrained = 0,
  kFrozen = 1,
  kNominal = 2,
  kExternal = 3,
  kGroupName = 0,
  kStep = 1,
  kLearningRate = 2,
  kStates = 3,
  kParameter = 0,
  kMoments = 1,
  kInts = 0,
  kFloats = 1,
  kStrings = 2,
  kPropertyName = 0,
  kPropertyValue = 1,
  kName = 0,
  kDims = 2,
  kType = 3,
  kData = 4,
  kExternalOffset = 6
};

}  // namespace ofsdp::importer
