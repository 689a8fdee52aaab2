-- Twin of concurrency.rs.
-- limit: slots, lease.
local function concurrency(limit)
  return holding('concurrency', limit[1], limit[2], false)
end
