# SPDX-License-Identifier: Apache-2.0
# Recorded toolkit: settings of the project template.
set(ASCEND_AUTOGEN_PATH ${CMAKE_BINARY_DIR}/autogen)
set(ASCEND_FRAMEWORK_TYPE plugin)
file(MAKE_DIRECTORY ${ASCEND_AUTOGEN_PATH})
foreach(needed vendor_name ASCEND_CANN_PACKAGE_PATH ASCEND_COMPUTE_UNIT ASCEND_PYTHON_EXECUTABLE
    ENABLE_SOURCE_PACKAGE ENABLE_BINARY_PACKAGE)
  if(NOT DEFINED ${needed})
    message(FATAL_ERROR "recorded toolkit: ${needed} is not set")
  endif()
endforeach()
