# SPDX-License-Identifier: Apache-2.0
# What is built: one decision by opp_package/build_config.py, the same that names the wheel's version.
# Nothing of it is cached, so a reused build tree follows its environment.
set(FLA_CONFIG ${CMAKE_BINARY_DIR}/build_config.json)
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/opp_package/build_config.py
    --backend "${FLA_NPU_BACKEND}" --soc "${FLA_NPU_SOC}" --ops "${FLA_NPU_OPS}"
    "--kernel-options=${FLA_NPU_KERNEL_OPTIONS}"
    --compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    --arch "${CMAKE_SYSTEM_PROCESSOR}" --build-type "${CMAKE_BUILD_TYPE}" --out ${FLA_CONFIG}
  RESULT_VARIABLE failed ERROR_VARIABLE why OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${why}")
endif()
file(READ ${FLA_CONFIG} config)
foreach(key backend arch cann cann_home cann_asc)
  string(TOUPPER ${key} KEY)
  string(JSON FLA_${KEY} GET ${config} ${key})
endforeach()
foreach(key socs ops kernel_options)
  string(TOUPPER ${key} KEY)
  string(JSON FLA_${KEY} GET ${config} ${key})   # plain words in a JSON list
  string(REGEX MATCHALL "[^][\", \n]+" FLA_${KEY} "${FLA_${KEY}}")
endforeach()
message(STATUS "fla-npu: backend ${FLA_BACKEND}, ${FLA_SOCS}, operators ${FLA_OPS}")
